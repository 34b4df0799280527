"""The mini recipe, small: its parts fit together, and it is the recipe that it says it is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")


from corpus_plan import CorpusOptions
from make_corpus import get_parser

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "egs" / "mini_synth" / "demo"
FULL = ROOT / "egs" / "mini_synth" / "asr1"


@pytest.fixture
def calls(tmp_path):
    """Run it with a stand-in for asr.sh; gives what it prints and the options of each call."""
    folder = tmp_path / "egs" / "mini_synth" / "demo"
    folder.mkdir(parents=True)
    (tmp_path / "egs" / "TEMPLATE").symlink_to(ROOT / "egs" / "TEMPLATE")
    for name in ("medusa.sh", "path.sh", "conf", "run.sh"):
        (folder / name).symlink_to((DEMO / name).resolve())
    script = folder / "asr.sh"
    script.write_text("#!/usr/bin/env bash\nprintf '%s\\t' \"$@\" >> calls\necho >> calls\n")
    script.chmod(0o755)

    def run(*options: str) -> tuple[str, list[dict[str, str]]]:
        done = subprocess.run(
            ["./run.sh", *options], cwd=folder, text=True, capture_output=True,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )  # fmt: skip
        lines = (folder / "calls").read_text().splitlines()
        words = [line.removesuffix("\t").split("\t") for line in lines]
        return done.stdout, [dict(zip(w[::2], w[1::2], strict=True)) for w in words]

    return run


def config(folder: Path, system: str) -> dict:
    return yaml.safe_load((folder / "conf" / f"train_{system}.yaml").read_text())


def test_it_trains_a_base_and_heads_on_a_smaller_corpus(calls):
    printed, (base, *heads) = calls()
    assert re.search(r"about \d+ minutes", printed), "it says how long it takes"
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
        assert corpus[same] == getattr(full, same), "what it is tested on stays"


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
