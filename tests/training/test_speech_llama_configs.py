"""LibriSpeech's Speech-LLaMA: the sizes that the paper reports, and what its recipe trains."""

import pytest
import torch
import yaml
from recipes import ROOT, link_recipe, record_asr, recorded, run

from espnet_medusa.task import MedusaASRTask

CONF = ROOT / "egs" / "librispeech" / "asr1" / "conf"
V, D, K = 32000, 768, 4
PUBLISHED = {"_latent": 234e6, "_projection": 306e6}


def size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_those_of_the_paper(tmp_path):
    tokens = tmp_path / "tokens.txt"
    words = ["<blank>", "<unk>", *(f"word{index}" for index in range(V - 3)), "<sos/eos>"]
    tokens.write_text("\n".join(words) + "\n")

    def build(kind: str) -> torch.nn.Module:
        config = str(CONF / f"train_speech_llama{kind}.yaml")
        args = MedusaASRTask.get_parser().parse_args(
            ["--config", config, "--token_list", str(tokens), "--output_dir", "unused"]
        )
        with torch.device("meta"):
            return MedusaASRTask.build_model(args)

    models = {kind: build(kind) for kind in ("", *PUBLISHED)}
    for kind, published in PUBLISHED.items():
        assert size(models[kind]) == pytest.approx(published, rel=0.03)
        assert size(models[kind].encoder) == pytest.approx(100e6, rel=0.03)
        assert size(models[kind].decoder.llama) == pytest.approx(125e6, rel=0.03)
        assert models[kind].decoder.projection.shape == (V, D)
        assert models[kind].decoder.num_heads == K - 1
    heads = [size(models[kind]) - size(models[""]) for kind in PUBLISHED]
    assert heads == [K * D**2, (K - 1) * D * V], "what the paper derives"


def assert_options(call: dict[str, str], **expected: str) -> None:
    assert {name: call[f"--{name}"] for name in expected} == expected


def test_recipe_trains_the_baseline_then_heads_on_it(tmp_path):
    folder = link_recipe(tmp_path, "librispeech/asr1")
    record_asr(folder)
    options = ["--part", 100, "--stop_stage", 11, "--ngpu", 8]
    run(folder, "./run_speech_llama.sh", *options, status=0)
    base, *heads = recorded(folder)
    data = "--part 100 --nj 4 --test_sets test_clean test_other --librispeech_pc false"
    expected = {"asr_tag": "speech_llama", "pretrained_model": "", "stage": "1"}
    assert_options(base, local_data_opts=data, **expected)
    for kind, call in zip(("projection", "latent"), heads, strict=True):
        assert_options(
            call, asr_config=f"conf/train_speech_llama_{kind}.yaml",
            asr_args=f"--decoder_conf heads_conf.num_heads={K - 1} ",
            asr_tag=f"speech_llama_{kind}_4",
            pretrained_model="exp/asr_speech_llama/valid.acc.ave.pth",
            train_set="train_clean_100", nbpe="32000", ngpu="8",
        )  # fmt: skip


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
