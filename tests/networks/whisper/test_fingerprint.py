"""Fingerprints are equal for the same weights in any file, and differ for other weights."""

import pytest
import torch
import whisper as openai
from ctranslate2_folder import save_ctranslate2
from transformers import WhisperConfig, WhisperForConditionalGeneration

from espnet_medusa.inference.convert.names import DECODER, ENCODER
from espnet_medusa.inference.convert.read_whisper import SIZES
from espnet_medusa.networks.whisper.fingerprint import digests, fingerprint
from espnet_medusa.networks.whisper.pretrained import open_whisper

DIMS = openai.model.ModelDimensions(80, 50, 8, 2, 1, 60, 40, 8, 2, 2)


def weights_of(path):
    whisper = open_whisper(str(path))
    return {
        prefix + name: value
        for prefix, half in ((ENCODER, "encoder"), (DECODER, "decoder"))
        for name, value in whisper.weights(half).items()
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One Whisper in every format and precision."""
    folder = tmp_path_factory.mktemp("whispers")
    torch.manual_seed(0)
    model = openai.model.Whisper(DIMS)
    for parameter in model.parameters():
        parameter.data = (0.25 * torch.randn(parameter.shape)).half().float()
    for name, dtype in (("float16.pt", torch.float16), ("float32.pt", torch.float32)):
        stored = {name: value.to(dtype) for name, value in model.state_dict().items()}
        torch.save({"dims": vars(DIMS), "model_state_dict": stored}, folder / name)
    read = open_whisper(str(folder / "float32.pt"))
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    tokens |= {"suppress_tokens": None, "begin_suppress_tokens": None}
    sizes = {name: getattr(read.config, name) for name in SIZES}
    whisper = WhisperForConditionalGeneration(WhisperConfig(**sizes, **tokens))
    for half in ("encoder", "decoder"):
        getattr(whisper.model, half).load_state_dict(read.weights(half))
    whisper.save_pretrained(folder / "hf_float32")
    for kind in ("float32", "float16", "int8"):
        save_ctranslate2(folder / f"ct2_{kind}", whisper, kind)
    (folder / "bin").mkdir()
    whisper.config.save_pretrained(folder / "bin")
    torch.save(whisper.state_dict(), folder / "bin" / "pytorch_model.bin")
    whisper.half().save_pretrained(folder / "hf_float16")
    return folder


def test_fingerprints_are_equal_for_all_formats_and_precisions(files):
    names = "float16.pt", "float32.pt", "hf_float32", "hf_float16", "bin", "ct2_float32"
    expected = fingerprint(weights_of(files / "ct2_float16"))
    assert len(expected) == 64
    assert {fingerprint(weights_of(files / name)) for name in names} == {expected}
    assert fingerprint(weights_of(files / "ct2_int8")) != expected


def test_every_learned_tensor_changes_the_fingerprint(files):
    weights = weights_of(files / "hf_float32")
    known = digests(weights)
    assert {*weights} - {*known} == {"encoder.whisper.embed_positions.weight"}
    for name, value in weights.items():
        changed = {**weights, name: value.clone()}
        changed[name].view(-1)[-1] += 0.01
        found = digests(changed)
        assert {key for key in known if found[key] != known[key]} == {name} & {*known}
        assert (fingerprint(changed) == fingerprint(weights)) == (name not in known)


def test_other_tensors_do_not_change_the_fingerprint(files):
    weights = weights_of(files / "hf_float32")
    name = "decoder.whisper.layers.0.fc1.weight"
    others = {"decoder.heads.cell.norm.weight": torch.ones(3), "ctc.ctc_lo.bias": torch.ones(2)}
    nearly = weights[name] * (1 + 1e-5)  # less than the resolution of float16
    assert fingerprint({**weights, **others, name: nearly}) == fingerprint(weights)
    zeros = {name: torch.zeros(3)}, {name: -torch.zeros(3)}
    assert fingerprint(zeros[0]) == fingerprint(zeros[1])
    assert fingerprint(zeros[0]) != fingerprint({name: torch.zeros(3, 1)})
    assert fingerprint(dict(reversed([*weights.items()]))) == fingerprint(weights)
