"""faster-whisper's folders as ``whisper_model``, against transformers; damage is refused."""

import itertools
import random
import re
import struct
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from cases import cases
from ctranslate2_folder import ALIASES, FLOATS, pack, save_ctranslate2, variables_of
from refusals import allocates_less_than, assert_refused
from refusals import refused as one_line
from tiny_whisper import save_tiny_whisper
from transformers_whisper import tiny_whisper

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.draft_model import open_draft_model
from espnet_medusa.networks.whisper.ctranslate2_whisper import read_config, read_half
from espnet_medusa.networks.whisper.pretrained import DECODER, ENCODER, open_whisper
from espnet_medusa.networks.whisper.text import read_text
from espnet_medusa.networks.whisper.tokens import VOCABULARIES, make_tokenizer

KINDS = {
    "float32": {"vocab_size": 51864}, "float16": {"vocab_size": 51866, "num_mel_bins": 128},
    "bfloat16": {"vocab_size": 40, "encoder_layers": 3, "decoder_layers": 4},
    "int8": {"vocab_size": 51865}, "int16": {"vocab_size": 40},
}  # fmt: skip
WITH_TOKENIZER = [kind for kind, sizes in KINDS.items() if sizes["vocab_size"] in VOCABULARIES]
CONV, NORM = "encoder/conv1/weight", "decoder/pre_norm"


@torch.no_grad()
def round_weights(whisper, kind: str) -> None:
    """Round weights as this type does; fused projections have a scale for each row."""
    for name, weight in whisper.named_parameters():
        if kind in FLOATS:
            weight.copy_(weight.to(FLOATS[kind]))
        elif weight.dim() > 1 and "embed_positions" not in name:
            largest = weight.flatten(1).abs().amax(1).reshape(-1, *[1] * (weight.dim() - 1))
            if kind == "int16":
                largest = fused_largest(whisper, name, weight)
            scale = torch.tensor(127.0 if kind == "int8" else 1024.0) / largest
            weight.copy_((weight * scale).round() / scale)


def fused_largest(whisper, name: str, weight: torch.Tensor) -> torch.Tensor:
    """The largest value of all tensors in one variable, which share a scale."""
    parts = ["v_proj", "k_proj", *(["q_proj"] if ".self_attn." in name else [])]
    if not any(part in name for part in parts):
        return weight.abs().max()
    own = next(part for part in parts if part in name)
    # Rounding keeps a tensor's largest value, so the order of rounding does not matter.
    named = dict(whisper.named_parameters())
    return torch.stack([named[name.replace(own, part)].abs().max() for part in parts]).max()


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    whisper = tiny_whisper(path / "hf", **KINDS[request.param])
    folder = save_ctranslate2(path / "ct2", whisper, request.param)
    round_weights(whisper, request.param)
    return folder, whisper


def test_floats_are_read_exactly(case):
    folder, whisper = case
    opened, exact = open_whisper(str(folder)), folder.parent.name.startswith(("float", "bfloat"))
    for half, module in ((ENCODER, whisper.model.encoder), (DECODER, whisper.model.decoder)):
        weights, expected = dict(opened.weights(half)), dict(module.state_dict())
        torch.testing.assert_close(weights, expected, rtol=0 if exact else 1e-5, atol=0)


def test_sizes_are_read_from_the_file(tmp_path):
    whisper = tiny_whisper(tmp_path / "hf", vocab_size=40, hidden_size=8, encoder_layers=3)
    variables = variables_of(whisper) | {"decoder/num_heads": torch.tensor(4).short()}
    (tmp_path / "model.bin").write_bytes(pack(variables))
    config = read_config(tmp_path / "model.bin")
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (2, 4)
    assert (config.encoder_layers, config.decoder_layers, config.encoder_ffn_dim) == (3, 2, 16)
    assert (config.max_source_positions, config.max_target_positions) == (1500, 448)


@pytest.mark.parametrize("case", WITH_TOKENIZER, indirect=True)
def test_it_works_as_draft_model_with_its_tokens(case):
    folder, whisper = case
    size = whisper.config.vocab_size
    vocabulary = make_tokenizer(size).get_vocab()
    assert [*read_text(str(folder)).tokens] == sorted(vocabulary, key=vocabulary.get)
    draft = open_draft_model(str(folder), None, "cpu", torch.float32)
    assert draft.decoder.whisper.config.vocab_size == size
    assert draft.whisper.languages.get("de") == (None if size == 51864 else 50261)


def test_hub_name(tmp_path, monkeypatch):
    folder = save_ctranslate2(tmp_path / "ct2", tiny_whisper(tmp_path / "hf", hidden_size=8))
    fetch = Mock(return_value=str(folder))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    whisper = open_whisper("Systran/faster-whisper-base")
    assert whisper.config.d_model == 8 and whisper.files == (folder / "model.bin",)
    assert [call.args for call in fetch.call_args_list] == [("Systran/faster-whisper-base",)] * 2
    first, second = (call.kwargs["allow_patterns"] for call in fetch.call_args_list)
    assert "model.bin" not in first, "only without safetensors"
    assert "model.bin" in second and "*.json" in second
    preferred = save_tiny_whisper(folder, hidden_size=8) / "model.safetensors"
    assert open_whisper(str(folder)).files == (preferred,)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small")
    whisper = tiny_whisper(path / "hf", vocab_size=40, hidden_size=8, decoder_layers=1)
    return save_ctranslate2(path / "ct2", whisper), variables_of(whisper)


def refused(folder, content: bytes) -> str:
    (folder / "model.bin").write_bytes(content)
    with one_line(folder / "model.bin", "; ") as error:
        open_whisper(str(folder))
    return str(error.value)


@cases(
    ("encoder/conv1/bias", None, "encoder/conv1/bias is missing"),
    ("encoder/conv1/weights", torch.zeros(2), "encoder/conv1/weights is no variable of Whisper"),
    ("encoder/layer_7/ffn/linear_0/weight", torch.zeros(2, 2), "encoder/layer_1/.* is missing"),
    ("encoder/conv1/bias", torch.zeros(9), r"is \(9,\) instead of \(8,\)"),
    (CONV, torch.zeros(8, 80), "of shape .8, 80.; allowed: of rank 3"),
    (CONV, None, "encoder/conv1/weight is missing; allowed: of rank 3"),
    (CONV, torch.zeros(8, 80, 3, 1), "rank 4; allowed: at most 3"),
    (CONV, torch.zeros(8, 80, 0), "allowed: dimensions of 1 or more"),
    (CONV, torch.zeros(8, 80, 3, dtype=torch.int32), "int32; allowed: float32"),
    (CONV, torch.zeros(8, 80, 3, dtype=torch.int8), r"int8 without .*_scale of shape \(8,\)"),
    (f"{CONV}_scale", torch.ones(8), "weight_scale is no variable of Whisper"),
    ("encoder/num_heads", torch.tensor(3), "attention_heads: 3; allowed: divisors of d_model, 8"),
    ("encoder/num_heads", torch.tensor(0), "attention_heads: 0; allowed"),
    ("encoder/num_heads", torch.tensor(-2), "attention_heads: -2; allowed"),
    ("encoder/num_heads", torch.tensor(torch.nan), "attention_heads: nan; allowed"),
    ("encoder/num_heads", torch.ones(1), "num_heads is of shape .1,.; allowed: of rank 0"),
    ("decoder/activation", torch.tensor(0), "activation: 0; allowed: 3, as every Whisper"),
    (NORM, torch.tensor(0), "pre_norm: 0; allowed: 1"),
    ("decoder/activation", None, "decoder/activation is missing"),
    ("decoder/projection/bias", torch.zeros(40), "projection/bias is no variable of Whisper"),
    ("decoder/embeddings/weight", torch.zeros(1, 2**20), "instead of"),
)
def test_other_variables_are_refused(name, value, message, small):
    folder, variables = small
    changed = {key: tensor for key, tensor in variables.items() if key != name}
    if value is not None:
        changed[name] = value.int() if value.dtype == torch.int64 else value
    assert re.search(message, refused(folder, pack(changed)))


def test_bad_headers_aliases_and_types_are_refused(small):
    folder, variables = small
    untied = variables | {"decoder/projection/weight": variables["decoder/embeddings/weight"]}
    for content, message in (
        (pack(variables, header=(6, "TransformerSpec", 7)), "allowed: WhisperSpec, revision 3"),
        (pack(variables, header=(7, "WhisperSpec", 3)), "format 7; allowed: 6"),
        (pack(variables, {}), "projection/weight is missing"),
        (pack(variables, {"y": "x"}), "refers to x, which does not exist"),
        (pack(variables, {NORM: CONV}), "occurs twice"),
        (pack(untied, {}), "not an alias of decoder/embeddings/weight"),
        (pack(variables).replace(b"decoder/scale_alibi", b"decoder/num_heads\0 ", 1), "is no name"),
        (pack(variables) + b"\0", "1 bytes too many"),
        (b"", "cannot be read"),
    ):
        assert message in refused(folder, content)
    scales = dict(variables)
    scales |= {CONV: torch.ones(8, 80, 3).char(), f"{CONV}_scale": torch.zeros(8)}
    (folder / "model.bin").write_bytes(pack(scales))
    assert_refused("weight_scale: not all above 0", open_whisper(str(folder)).weights, ENCODER)


@pytest.fixture(scope="module")
def packed(small):
    """The folder, its ``model.bin``, and where the values of its format begin."""
    places: list[int] = []
    return small[0], pack(small[1], places=places), places


def refuse_or_read(packed, content: bytes) -> None:
    """A damaged file is refused, or read, without much memory."""
    path, whole = packed[0] / "model.bin", packed[1]
    path.write_bytes(content)
    with allocates_less_than(2 * len(whole)):
        try:
            for half in (ENCODER, DECODER):
                read_half(path, half)
        except InputError as error:
            assert "\n" not in str(error) and str(path) in str(error)


def test_wrong_sizes_allocate_no_memory(packed):
    """Three wrong values of the first and last fields, and one of each other field."""
    _, content, places = packed
    # Longer fields are names or values.
    fields = [(start, end) for start, end in itertools.pairwise(places) if end - start <= 4]
    for number, (start, end) in enumerate(fields):
        lies, inner = [b"\xff", b"\x7f", b"\0"], 40 <= number < len(fields) - 10
        for lie in lies[number % 3 :][:1] if inner else lies:
            refuse_or_read(packed, content[:start] + lie * (end - start) + content[end:])
    everything = struct.pack("<I", 6) + b"\x0c\0WhisperSpec\0" + struct.pack("<II", 3, 2**32 - 1)
    refuse_or_read(packed, everything)


def test_aliases_allocate_no_memory(small):
    folder, variables = small
    place = "decoder/layer_0/"
    layer = [name for name in variables if name.startswith(place)]
    aliases = {
        name.replace(place, f"decoder/layer_{number}/"): name
        for number in range(1, 40)
        for name in layer
    }
    (folder / "model.bin").write_bytes(pack(variables, ALIASES | aliases))
    assert read_config(folder / "model.bin").decoder_layers == 40, "layers may share their values"
    wide = dict(variables)
    wide["decoder/layer_0/ffn/linear_0/weight"] = torch.zeros(8192, 8)
    assert "aliases take" in refused(folder, pack(wide, ALIASES | aliases))


def test_a_file_truncated_anywhere_is_refused(packed):
    folder, content, places = packed
    middles = [(start + end) // 2 for start, end in itertools.pairwise(places)]
    for length in sorted({*places, *middles} - {0}):
        assert "is truncated" in refused(folder, content[:length])


def test_random_bytes_are_refused_or_read(packed):
    _, content, places = packed
    draw = random.Random(0)
    spans = [range(start, min(end, start + 40)) for start, end in itertools.pairwise(places)]
    structure = [*itertools.chain(*spans)]
    for _ in range(300):
        spoiled = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            spoiled[draw.choice(structure)] = draw.randrange(256)
        refuse_or_read(packed, bytes(spoiled))
