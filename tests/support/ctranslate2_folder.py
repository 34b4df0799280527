"""Whispers of transformers as CTranslate2's converter writes them, written independently of it."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import WhisperForConditionalGeneration

from espnet_medusa.networks.whisper.tokens import VOCABULARIES, make_tokenizer

TYPE_IDS = {
    torch.float32: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.float16: 4,
    torch.bfloat16: 5,
}  # fmt: skip
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ALIASES = {"decoder/projection/weight": "decoder/embeddings/weight"}
CONFIG = {
    "suppress_ids": [1, 2, 7], "suppress_ids_begin": [220], "lang_ids": [50259, 50261],
    "alignment_heads": [[1, 0], [1, 1]],
}  # fmt: skip
LAYER = {  # CTranslate2's names of transformers' modules; several are stacked
    "self_attention/layer_norm": ["self_attn_layer_norm"],
    "self_attention/linear_0": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention/linear_1": ["self_attn.out_proj"],
    "attention/layer_norm": ["encoder_attn_layer_norm"],
    "attention/linear_0": ["encoder_attn.q_proj"],
    "attention/linear_1": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "attention/linear_2": ["encoder_attn.out_proj"],
    "ffn/layer_norm": ["final_layer_norm"],
    "ffn/linear_0": ["fc1"],
    "ffn/linear_1": ["fc2"],
}
FLAGS = {
    "activation": 3, "alibi": 0, "alibi_use_positive_positions": 0, "scale_alibi": 0,
    "scale_embeddings": 0, "start_from_zero_embedding": 0, "pre_norm": 1,
}  # fmt: skip


def variables_of(
    whisper: WhisperForConditionalGeneration, kind: str = "float32"
) -> dict[str, torch.Tensor]:
    """Return variables by CTranslate2's names, sorted; kind: a float, ``int8`` or ``int16``."""
    encoder, decoder = whisper.model.encoder, whisper.model.decoder
    numbers = {
        "decoder/alignment_heads": 1, "decoder/alignment_layer": -1,
        "encoder/num_heads": whisper.config.encoder_attention_heads,
        "decoder/num_heads": whisper.config.decoder_attention_heads,
    }  # fmt: skip
    variables = {f"decoder/{name}": torch.tensor(flag).char() for name, flag in FLAGS.items()}
    variables |= {name: torch.tensor(number).short() for name, number in numbers.items()}
    values = {"decoder/embeddings/weight": decoder.embed_tokens.weight}
    values |= weights("encoder/conv1", encoder.conv1) | weights("encoder/conv2", encoder.conv2)
    for side, half in (("encoder", encoder), ("decoder", decoder)):
        values[f"{side}/position_encodings/encodings"] = half.embed_positions.weight
        values |= weights(f"{side}/layer_norm", half.layer_norm)
        for number, layer in enumerate(half.layers):
            for name, parts in LAYER.items():
                if side == "decoder" or not name.startswith("attention/"):
                    modules = map(layer.get_submodule, parts)
                    values |= weights(f"{side}/layer_{number}/{name}", *modules)
    for name, value in values.items():
        variables |= stored(name, value.detach(), kind)
    return dict(sorted(variables.items()))


def weights(name: str, *modules: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights and biases of one module, or of several linear layers, stacked."""
    if isinstance(modules[0], torch.nn.LayerNorm):
        return {f"{name}/gamma": modules[0].weight, f"{name}/beta": modules[0].bias}
    zeros = torch.zeros(len(modules[0].weight))
    biases = [zeros if module.bias is None else module.bias for module in modules]
    weight = torch.cat([module.weight for module in modules])
    return {f"{name}/weight": weight, f"{name}/bias": torch.cat(biases)}


def stored(name: str, value: torch.Tensor, kind: str) -> dict[str, torch.Tensor]:
    """A variable in the file's type, with its scale where it is an integer."""
    if kind in FLOATS:
        return {name: value.to(FLOATS[kind])}
    if not name.endswith("/weight"):
        return {name: value}
    if kind == "int16":
        scale = torch.tensor(1024.0) / value.abs().max()
        return {name: (value * scale).round().short(), f"{name}_scale": scale}
    largest = value.flatten(1).abs().amax(1)
    # For a plain 127.0, torch would multiply by the reciprocal, which rounds differently.
    scale = torch.tensor(127.0) / torch.where(largest == 0, 127.0, largest)
    rows = scale.reshape(-1, *[1] * (value.dim() - 1))
    return {name: (value * rows).round().char(), f"{name}_scale": scale}


def pack(
    variables: Mapping[str, torch.Tensor],
    aliases: Mapping[str, str] = ALIASES,
    header: tuple[int, str, int] = (6, "WhisperSpec", 3),
    places: list[int] | None = None,
) -> bytes:
    """Return a ``model.bin``; append to ``places`` the offset of each of its fields."""
    parts: list[bytes] = []

    def put(data: bytes) -> None:
        if places is not None:
            places.append(sum(map(len, parts)))
        parts.append(data)

    def string(text: str) -> None:
        put(struct.pack("<H", len(text) + 1))
        put(text.encode() + b"\0")

    version, specification, revision = header
    put(struct.pack("<I", version))
    string(specification)
    put(struct.pack("<I", revision))
    put(struct.pack("<I", len(variables)))
    for name, value in variables.items():
        string(name)
        put(struct.pack("<B", value.dim()))
        for size in value.shape:
            put(struct.pack("<I", size))
        put(struct.pack("<B", TYPE_IDS[value.dtype]))
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        put(struct.pack("<I", len(data)))
        put(data)
    put(struct.pack("<I", len(aliases)))
    for alias, name in aliases.items():
        string(alias)
        string(name)
    return b"".join(parts)


def save_ctranslate2(
    folder: Path, whisper: WhisperForConditionalGeneration, kind: str = "float32"
) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(pack(variables_of(whisper, kind)))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if whisper.config.vocab_size in VOCABULARIES:
        tokenizer = make_tokenizer(whisper.config.vocab_size)
        tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder
