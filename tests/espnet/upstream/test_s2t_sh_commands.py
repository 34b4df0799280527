"""Commands of s2t.sh (ESPnet, December 2024), stages 11 and 12, with `espnet-medusa-python`."""

import re

import yaml
from experiment import write_corpus, write_lines
from recipes import ROOT, SHORT_TRAINING, run
from s2t_experiment import TOKENS, make_s2t_experiment

from espnet_medusa.data.options import read_config
from espnet_medusa.decoding.search.statistics import read_statistics

PAGE = (ROOT / "docs" / "owsm.md").read_text("utf-8")
HEADS = yaml.safe_load(re.search("^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1])
PYTHON = "python3", "-m", "espnet_medusa.bin.python"
TRAINING = (
    "-m espnet2.bin.s2t_train --use_preprocessor true --bpemodel none --token_type char "
    "--token_list base/tokens.txt --non_linguistic_symbols data/nlsyms --cleaner none --g2p none "
    "--resume true --fold_length 80000 --fold_length 150 --fold_length 150 --fold_length 150 "
    "--output_dir exp --config heads.yaml --frontend_conf fs=16k "
)
DATA = (
    "--{0}_data_path_and_name_and_type data/wav.scp,speech,sound --{0}_shape_file data/lengths "
    "--{0}_data_path_and_name_and_type data/text.prev,text_prev,text --{0}_shape_file data/shape "
    "--{0}_data_path_and_name_and_type data/text.ctc,text_ctc,text --{0}_shape_file data/shape "
    "--{0}_data_path_and_name_and_type data/text,text,text --{0}_shape_file data/shape "
)
INFERENCE = (
    "-m espnet2.bin.s2t_inference --batch_size 1 --ngpu 0 "
    "--data_path_and_name_and_type data/wav.scp,speech,sound --key_file data/wav.scp "
    "--s2t_train_config exp/config.yaml --s2t_model_file exp/valid.acc_heads.ave.pth "
    "--config decode.yaml --output_dir "
)


def test_heads_of_the_page_are_trained_and_draft(tmp_path):
    base, data = make_s2t_experiment(tmp_path / "base", 3), tmp_path / "data"
    data.mkdir()
    seconds = {f"u{index}": 1.0 + 0.1 * index for index in range(4)}
    write_corpus(data, seconds)
    lines = {"text": "<eng><asr><notimestamps>abc", "text.prev": "<na>", "text.ctc": "abc"}
    for name, line in (lines | {"shape": f"6,{len(TOKENS)}"}).items():
        write_lines(data / name, dict.fromkeys(seconds, line))
    write_lines(data / "lengths", {key: int(16000 * s) for key, s in seconds.items()})
    (data / "nlsyms").write_text("".join(f"{token}\n" for token in TOKENS if len(token) > 1))
    config = read_config(tmp_path / "base" / "train.yaml", "") | yaml.safe_load(SHORT_TRAINING)
    for name, value in HEADS.items():
        config[name] = config[name] | value if isinstance(value, dict) else value
    config["init_param"] = [str(base["s2t_model_file"])]
    (tmp_path / "heads.yaml").write_text(yaml.safe_dump(config))
    words = TRAINING + DATA.format("train") + DATA.format("valid")
    run(tmp_path, *PYTHON, *words.split(), status=0)
    (tmp_path / "decode.yaml").write_text("beam_size: 3\nctc_weight: 0.3\nmaxlenratio: -9\n")
    run(tmp_path, *PYTHON, *INFERENCE.split(), "ours", "--draft_depth", "3", status=0)
    run(tmp_path, *PYTHON, "--no-redirect", *INFERENCE.split(), "espnet", status=0)
    rows = read_statistics(tmp_path / "ours" / "statistics.json").values()
    assert len(rows) == 4 and all(sum(row.drafted) > 0 for row in rows)
    assert not (tmp_path / "espnet" / "statistics.json").exists()
    for name in ("1best_recog/text", "1best_recog/token_int"):
        assert (tmp_path / "ours" / name).read_text() == (tmp_path / "espnet" / name).read_text()
