"""LibriSpeech's Speech-LLaMA: the sizes that the paper reports, and what its recipe trains."""

import subprocess
from pathlib import Path

import pytest
import torch
import warm_python
import yaml

from espnet_medusa.task import MedusaASRTask

CONF = Path(__file__).resolve().parents[2] / "egs" / "librispeech" / "asr1" / "conf"
V, D, K = 32000, 768, 4
PUBLISHED = {"_latent": 234e6, "_projection": 306e6}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The model of each config, on the meta device."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.txt"
    words = ["<blank>", "<unk>", *(f"word{index}" for index in range(V - 3)), "<sos/eos>"]
    tokens.write_text("\n".join(words) + "\n")

    def build(kind: str) -> torch.nn.Module:
        config = str(CONF / f"train_speech_llama{kind}.yaml")
        args = MedusaASRTask.get_parser().parse_args(
            ["--config", config, "--token_list", str(tokens), "--output_dir", "unused"]
        )
        with torch.device("meta"):
            return MedusaASRTask.build_model(args)

    return {kind: build(kind) for kind in ("", *PUBLISHED)}


def size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_those_of_the_paper(models):
    for kind, published in PUBLISHED.items():
        assert size(models[kind]) == pytest.approx(published, rel=0.03)
        assert size(models[kind].encoder) == pytest.approx(100e6, rel=0.03)
        assert size(models[kind].decoder.llama) == pytest.approx(125e6, rel=0.03)
        assert models[kind].decoder.projection.shape == (V, D)
        assert models[kind].decoder.num_heads == K - 1
    heads = [size(models[kind]) - size(models[""]) for kind in PUBLISHED]
    assert heads == [K * D**2, (K - 1) * D * V], "what the paper derives"


def test_recipe_trains_the_baseline_then_heads_on_it(tmp_path):
    folder = tmp_path / "egs" / "librispeech" / "asr1"
    folder.mkdir(parents=True)
    (tmp_path / "egs" / "TEMPLATE").symlink_to(CONF.parents[2] / "TEMPLATE")
    for name in ("medusa.sh", "path.sh", "run_speech_llama.sh", "conf"):
        (folder / name).symlink_to((CONF.parent / name).resolve())
    (folder / "asr.sh").write_text(
        '#!/usr/bin/env bash\nprintf "%s|" "$@" >> calls; echo >> calls\n'
    )
    (folder / "asr.sh").chmod(0o755)
    done = subprocess.run(
        ["./run_speech_llama.sh", "--part", "100", "--stop_stage", "11", "--ngpu", "8"],
        cwd=folder, text=True, capture_output=True,
        env=warm_python.environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    base, *heads = (folder / "calls").read_text().splitlines()
    assert "--asr_tag|speech_llama|--pretrained_model||" in base and "--stage|1|" in base
    data = "--part 100 --librispeech_pc false --nj 4 --test_sets test_clean test_other"
    assert f"--local_data_opts|{data}|" in base
    for kind, call in zip(("projection", "latent"), heads, strict=True):
        assert f"--asr_config|conf/train_speech_llama_{kind}.yaml|" in call
        assert f"--asr_args|--decoder_conf heads_conf.num_heads={K - 1} |" in call
        start = "exp/asr_speech_llama/valid.acc.ave.pth"
        assert f"--asr_tag|speech_llama_{kind}_4|--pretrained_model|{start}|" in call
        assert "--train_set|train_clean_100|" in call
        assert "--nbpe|32000|" in call and "--ngpu|8|" in call


def test_heads_on_whisper_differ_only_in_their_kind():
    base, latent, projection = (
        yaml.safe_load((CONF / f"train_speech_llama_whisper{kind}.yaml").read_text())
        for kind in ("", "_latent", "_projection")
    )
    assert latent["decoder_conf"].pop("heads") == "latent"
    assert projection["decoder_conf"].pop("heads") == "projection"
    assert latent == projection
    assert latent["decoder_conf"].pop("heads_conf") == {"num_heads": K - 1}
    for name in ("encoder_conf", "decoder_conf", "freeze_param"):
        assert latent[name] == base[name]
