"""The digit recipe with small models on chords: data, training, decoding, scores."""

import json

import pytest
import yaml
from fsdd_miniature import make_fsdd
from recipes import ROOT, copy_config, link_recipe, run

HEADS = "block_3heads"
TINY = {"output_size": 32, "num_blocks": 1, "attention_heads": 2, "linear_units": 48}


@pytest.fixture
def recipe(tmp_path):
    """Return the recipe with small models."""
    folder = link_recipe(tmp_path, "fsdd/asr1", without=("conf",))
    (folder / "conf" / "decode").rmdir()
    (folder / "conf" / "decode").symlink_to(ROOT / "conf" / "decode")
    decoder = {name: value for name, value in TINY.items() if name != "output_size"}
    for name in ("train_base", "train_block"):
        copy_config(
            ROOT / "egs" / "fsdd" / "asr1" / "conf" / f"{name}.yaml", folder / "conf",
            encoder_conf=TINY, decoder_conf=decoder, max_epoch=1,
        )  # fmt: skip
    return folder


def test_digit_strings_from_archives_to_results(recipe, tmp_path):
    fsdd_dir = make_fsdd(tmp_path / "fsdd")
    # The model is almost untrained: a minimum length makes it write something.
    done = run(
        recipe, "./run.sh", "--heads", HEADS, "--decodings", "exact",
        "--local_data_opts", f"--fsdd_dir {fsdd_dir} --minutes 2 --dev_utterances 6 "
        "--test_utterances 8", "--report", ROOT / "conf" / "report" / "mini_synth.yaml",
        "--nj", "1", "--train_nj", "1", "--inference_nj", "1",
        "--inference_args", "--minlenratio -6 --maxlenratio -20",
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
