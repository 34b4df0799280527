"""The demo: its configs fit together, and only sizes differ from the full recipe."""

import re
from pathlib import Path

import pytest
import yaml
from recipes import ROOT, link_recipe, record_asr, recorded, run

pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")


from corpus_plan import CorpusOptions
from make_corpus import get_parser

DEMO = ROOT / "egs" / "mini_synth" / "demo"
FULL = ROOT / "egs" / "mini_synth" / "asr1"


@pytest.fixture
def calls(tmp_path):
    """Return a function that runs the recipe: its output, and options of each asr.sh call."""
    folder = link_recipe(tmp_path, "mini_synth/demo")
    record_asr(folder)

    return lambda *options: (run(folder, "./run.sh", *options).stdout, recorded(folder))


def config(folder: Path, system: str) -> dict:
    return yaml.safe_load((folder / "conf" / f"train_{system}.yaml").read_text())


def test_it_trains_a_base_and_heads_on_a_smaller_corpus(calls):
    printed, (base, *heads) = calls()
    assert re.search(r"about \d+ minutes", printed), "the expected time is printed"
    names = [call["--asr_tag"] for call in heads]
    assert base["--asr_tag"] == "base" and names[-1] == "recurrent" and len(names) == 2
    for call in (base, *heads):
        assert (DEMO / call["--asr_config"]).is_file()
        for decoding in call["--inference_configs"].split():
            assert (DEMO / decoding).is_file()
        assert call["--train_nj"] == "2"
    corpus = vars(get_parser().parse_args(base["--local_data_opts"].split()))
    full = CorpusOptions()
    assert corpus["minutes"] < full.minutes
    for same in ("test_utterances", "dev_utterances", "test_unseen_fraction", "seed"):
        assert corpus[same] == getattr(full, same), "the test set is the same"


@pytest.mark.parametrize("system", ["linear", "block", "recurrent"])
def test_heads_fit_the_base(system):
    base, heads = config(DEMO, "base"), config(DEMO, system)
    assert heads["decoder_conf"].pop("heads") == system
    assert heads["decoder_conf"].pop("heads_conf") == {"num_heads": 8}
    for part in ("encoder_conf", "decoder_conf"):
        without_dropout = {k: v for k, v in base[part].items() if k != "dropout_rate"}
        assert heads[part] == without_dropout


@pytest.mark.parametrize("system", ["base", "linear", "block", "recurrent"])
def test_it_is_the_full_recipe_with_other_sizes(system):
    demo, full = config(DEMO, system), config(FULL, system)
    sizes = ("encoder_conf", "decoder_conf", "optim_conf", "scheduler_conf", "model_conf")
    for name in (*sizes, "batch_size", "max_epoch"):
        ours, theirs = demo.pop(name), full.pop(name)
        assert not isinstance(ours, dict) or ours.keys() == theirs.keys()
    assert demo == full
