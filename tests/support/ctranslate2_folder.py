"""Whispers of transformers as CTranslate2's converter writes them, written independently of it."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import WhisperForConditionalGeneration

from espnet_medusa.whisper.tokens import VOCABULARIES, make_tokenizer

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


def variables_of(
    whisper: WhisperForConditionalGeneration, kind: str = "float32"
) -> dict[str, torch.Tensor]:
    """By CTranslate2's names, sorted; kind: a float, ``int8`` or ``int16``."""
    config, model = whisper.config, whisper.model
    found = {
        "decoder/activation": torch.tensor(3, dtype=torch.int8),
        "decoder/alignment_heads": torch.tensor(1, dtype=torch.int16),
        "decoder/alignment_layer": torch.tensor(-1, dtype=torch.int16),
        "encoder/num_heads": torch.tensor(config.encoder_attention_heads, dtype=torch.int16),
        "decoder/num_heads": torch.tensor(config.decoder_attention_heads, dtype=torch.int16),
    }
    zero, one = torch.tensor(0, dtype=torch.int8), torch.tensor(1, dtype=torch.int8)
    for flag in ("alibi", "alibi_use_positive_positions", "scale_alibi", "scale_embeddings"):
        found[f"decoder/{flag}"] = zero
    found |= {"decoder/start_from_zero_embedding": zero, "decoder/pre_norm": one}
    values = {"decoder/embeddings/weight": model.decoder.embed_tokens.weight}
    for number, conv in enumerate((model.encoder.conv1, model.encoder.conv2), start=1):
        values |= {f"encoder/conv{number}/weight": conv.weight}
        values |= {f"encoder/conv{number}/bias": conv.bias}
    for side, half in (("encoder", model.encoder), ("decoder", model.decoder)):
        values[f"{side}/position_encodings/encodings"] = half.embed_positions.weight
        values |= norm(f"{side}/layer_norm", half.layer_norm)
        for number, layer in enumerate(half.layers):
            values |= layer_values(f"{side}/layer_{number}", layer)
    for name, value in values.items():
        found |= stored(name, value.detach(), kind)
    return dict(sorted(found.items()))


def layer_values(place: str, layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    heard = layer.self_attn
    values = {
        **norm(f"{place}/self_attention/layer_norm", layer.self_attn_layer_norm),
        **linear(f"{place}/self_attention/linear_0", heard.q_proj, heard.k_proj, heard.v_proj),
        **linear(f"{place}/self_attention/linear_1", heard.out_proj),
        **norm(f"{place}/ffn/layer_norm", layer.final_layer_norm),
        **linear(f"{place}/ffn/linear_0", layer.fc1),
        **linear(f"{place}/ffn/linear_1", layer.fc2),
    }
    if hasattr(layer, "encoder_attn"):
        seen = layer.encoder_attn
        values |= {
            **norm(f"{place}/attention/layer_norm", layer.encoder_attn_layer_norm),
            **linear(f"{place}/attention/linear_0", seen.q_proj),
            **linear(f"{place}/attention/linear_1", seen.k_proj, seen.v_proj),
            **linear(f"{place}/attention/linear_2", seen.out_proj),
        }
    return values


def norm(name: str, layer: torch.nn.LayerNorm) -> dict[str, torch.Tensor]:
    return {f"{name}/gamma": layer.weight, f"{name}/beta": layer.bias}


def linear(name: str, *layers: torch.nn.Linear) -> dict[str, torch.Tensor]:
    biases = [
        torch.zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers
    ]
    return {
        f"{name}/weight": torch.cat([layer.weight for layer in layers]),
        f"{name}/bias": torch.cat(biases),
    }


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
    # A tensor over a tensor: a number over a tensor is a product with its reciprocal.
    scale = torch.tensor(127.0) / torch.where(largest == 0, 127.0, largest)
    rows = scale.reshape(-1, *[1] * (value.dim() - 1))
    return {name: (value * rows).round().char(), f"{name}_scale": scale}


def pack(
    variables: Mapping[str, torch.Tensor],
    aliases: Mapping[str, str] = ALIASES,
    header: tuple[int, str, int] = (6, "WhisperSpec", 3),
    places: list[int] | None = None,
) -> bytes:
    """A ``model.bin``; places: takes where each number, string and tensor starts."""
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
    """Write model.bin, config.json, and for a vocabulary of OpenAI's tokenizer.json."""
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(pack(variables_of(whisper, kind)))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if whisper.config.vocab_size in VOCABULARIES:
        tokenizer = make_tokenizer(whisper.config.vocab_size)
        tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder
