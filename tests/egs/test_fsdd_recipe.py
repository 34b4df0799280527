"""The digit recipe end to end, small, on chords: data, training, heads, decoding, scores."""

import json
import subprocess
from pathlib import Path

import pytest
import warm_python
import yaml
from fsdd_miniature import make_fsdd
from waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
HEADS = "block_3heads"
TINY = {"output_size": 32, "num_blocks": 1, "attention_heads": 2, "linear_units": 48}


@pytest.fixture
def recipe(tmp_path):
    """The recipe with its own scripts and configs, the latter made small."""
    folder = tmp_path / "egs" / "fsdd" / "asr1"
    (folder / "conf").mkdir(parents=True)
    (tmp_path / "egs" / "TEMPLATE").symlink_to(ROOT / "egs" / "TEMPLATE")
    source = ROOT / "egs" / "fsdd" / "asr1"
    for name in ("asr.sh", "medusa.sh", "path.sh", "cmd.sh", "run.sh", "local"):
        (folder / name).symlink_to((source / name).resolve())
    (folder / "conf" / "decode").symlink_to(ROOT / "conf" / "decode")
    for name in ("train_base", "train_block"):
        config = yaml.safe_load((source / "conf" / f"{name}.yaml").read_text())
        config["encoder_conf"] |= TINY
        config["decoder_conf"] |= {**TINY, "num_blocks": 1}
        del config["decoder_conf"]["output_size"]
        config["max_epoch"] = 1
        (folder / "conf" / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_digit_strings_from_archives_to_results(recipe, tmp_path):
    fsdd_dir = make_fsdd(tmp_path / "fsdd")
    # The model has seen almost nothing: a minimum length makes it say something all the same.
    data = "--minutes 2 --dev_utterances 6 --test_utterances 8"
    done = subprocess.run(
        ["./run.sh", "--local_data_opts", f"--fsdd_dir {fsdd_dir} {data}", "--heads", HEADS,
         "--decodings", "exact", "--report", str(ROOT / "conf" / "report" / "mini_synth.yaml"),
         "--nj", "1", "--train_nj", "1", "--inference_nj", "1",
         "--inference_args", "--minlenratio -6 --maxlenratio -20"],
        cwd=recipe, text=True, capture_output=True, timeout=HANG_S,
        env=warm_python.environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    results = (recipe / "exp" / "RESULTS.md").read_text()
    assert f"{HEADS} exact" in results and "8/8" in results, "same text as plain, every utterance"
    assert json.loads((recipe / "exp" / "decoding.json").read_text())
    trained = yaml.safe_load((recipe / "exp" / f"asr_{HEADS}" / "config.yaml").read_text())
    assert trained["decoder_conf"]["heads_conf"]["num_heads"] == 3
    report = (recipe / "exp" / "REPORT.md").read_text()
    assert "|test|5 heads|not run|" in report, "another model was trained"
    texts = [path.read_text() for path in sorted(recipe.glob("exp/asr_*/*/test/text"))]
    assert len(texts) == 2 and texts[0] == texts[1] and texts[0].count("\n") == 8
    for image in ("acceptance_test", "speedup_test", "tokens_per_call_test"):
        assert (recipe / "exp" / "images" / f"{image}.png").stat().st_size > 1000
