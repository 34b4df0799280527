"""Whisper in CTranslate2's ``model.bin``: its sizes, and the tensors in each variable."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import WhisperConfig

from espnet_medusa.data.errors import InputError
from espnet_medusa.networks.whisper.ctranslate2_file import REMEDY, SCALE, BinaryFile, open_binary
from espnet_medusa.networks.whisper.sizes import check_sizes, scratch_config

SPECIFICATION, REVISION = "WhisperSpec", 3
EMBEDDINGS, PROJECTION = "decoder/embeddings/weight", "decoder/projection/weight"
HEADS = {side: f"{side}/num_heads" for side in ("encoder", "decoder")}
# Scalars of the decoder's computation, with their values in every Whisper.
FIXED = {"decoder/activation": 3, "decoder/scale_embeddings": 0}  # 3: GELU
FIXED_OPTIONAL = {"decoder/pre_norm": 1, "decoder/start_from_zero_embedding": 0, "decoder/alibi": 0}
# Ignored: Whisper has no alibi positions, and config.json has the alignment heads.
NOT_USED = (
    "decoder/alignment_layer",
    "decoder/alignment_heads",
    "decoder/alibi_use_positive_positions",
    "decoder/scale_alibi",
)
POSITIONS = {"encoder": "max_source_positions", "decoder": "max_target_positions"}
LAYER = re.compile(r"(encoder|decoder)/layer_\d+/ffn/linear_0/weight")


@dataclass(frozen=True)
class Stored:
    """Shape of a variable, and the tensors of equal size that are concatenated in it."""

    shape: tuple[int, ...]
    parts: tuple[str | None, ...]  # transformers' names; None: transformers has no such bias


def layout(config: WhisperConfig) -> dict[str, Stored]:
    """Return a Whisper's variables by name, without scalars and the tied projection."""
    size, mels = config.d_model, config.num_mel_bins
    variables = {EMBEDDINGS: Stored((config.vocab_size, size), ("decoder.embed_tokens.weight",))}
    for number, channels in ((1, mels), (2, size)):
        variable, tensor = f"encoder/conv{number}", f"encoder.conv{number}"
        variables[f"{variable}/weight"] = Stored((size, channels, 3), (f"{tensor}.weight",))
        variables[f"{variable}/bias"] = Stored((size,), (f"{tensor}.bias",))
    sides = {
        "encoder": (config.max_source_positions, config.encoder_layers, config.encoder_ffn_dim),
        "decoder": (config.max_target_positions, config.decoder_layers, config.decoder_ffn_dim),
    }
    for side, (positions, layers, ffn) in sides.items():
        encodings = Stored((positions, size), (f"{side}.embed_positions.weight",))
        variables[f"{side}/position_encodings/encodings"] = encodings
        variables |= _norm(f"{side}/layer_norm", f"{side}.layer_norm", size)
        for layer in range(layers):
            variables |= _layer(side, layer, size, ffn)
    return variables


def _layer(side: str, layer: int, size: int, ffn: int) -> dict[str, Stored]:
    variable, tensor = f"{side}/layer_{layer}", f"{side}.layers.{layer}"
    attention = f"{tensor}.self_attn"
    fused = [f"{attention}.{part}_proj" for part in "qkv"]
    variables = {
        **_norm(f"{variable}/self_attention/layer_norm", f"{attention}_layer_norm", size),
        **_linear(f"{variable}/self_attention/linear_0", (size, size), *fused),
        **_linear(f"{variable}/self_attention/linear_1", (size, size), f"{attention}.out_proj"),
        **_norm(f"{variable}/ffn/layer_norm", f"{tensor}.final_layer_norm", size),
        **_linear(f"{variable}/ffn/linear_0", (ffn, size), f"{tensor}.fc1"),
        **_linear(f"{variable}/ffn/linear_1", (size, ffn), f"{tensor}.fc2"),
    }
    if side == "encoder":
        return variables
    cross = f"{tensor}.encoder_attn"
    fused = [f"{cross}.{part}_proj" for part in "kv"]
    return variables | {
        **_norm(f"{variable}/attention/layer_norm", f"{cross}_layer_norm", size),
        **_linear(f"{variable}/attention/linear_0", (size, size), f"{cross}.q_proj"),
        **_linear(f"{variable}/attention/linear_1", (size, size), *fused),
        **_linear(f"{variable}/attention/linear_2", (size, size), f"{cross}.out_proj"),
    }


def _norm(variable: str, tensor: str, size: int) -> dict[str, Stored]:
    return {
        f"{variable}/gamma": Stored((size,), (f"{tensor}.weight",)),
        f"{variable}/beta": Stored((size,), (f"{tensor}.bias",)),
    }


def _linear(variable: str, shape: tuple[int, int], *tensors: str) -> dict[str, Stored]:
    rows, columns = shape[0] * len(tensors), shape[1]
    weights = tuple(f"{name}.weight" for name in tensors)
    # Whisper's keys have no bias, because softmax cancels it.
    biases = tuple(None if name.endswith("k_proj") else f"{name}.bias" for name in tensors)
    return {
        f"{variable}/weight": Stored((rows, columns), weights),
        f"{variable}/bias": Stored((rows,), biases),
    }


def read_config(path: Path) -> WhisperConfig:
    """Return the sizes of a ``model.bin``; raise InputError if it is not a complete Whisper."""
    return _open(path)[1]


def read_half(path: Path, half: str) -> dict[str, torch.Tensor]:
    """Return ``encoder`` or ``decoder`` by transformers' names; errors as ``read_config``."""
    stored, config = _open(path)
    weights = {}
    for name, variable in layout(config).items():
        if not name.startswith(f"{half}/"):
            continue
        parts = torch.from_numpy(stored.read(name)).chunk(len(variable.parts))
        for tensor, part in zip(variable.parts, parts, strict=True):
            if tensor is not None:
                # Cloned: a view would keep all parts in memory.
                weights[tensor.removeprefix(f"{half}.")] = part.clone() if len(parts) > 1 else part
    return weights


def _open(path: Path) -> tuple[BinaryFile, WhisperConfig]:
    stored = open_binary(path)
    if (stored.specification, stored.revision) != (SPECIFICATION, REVISION):
        raise InputError(
            f"{path}: {stored.specification}, revision {stored.revision}; allowed: "
            f"{SPECIFICATION}, revision {REVISION}: give a Whisper, converted by CTranslate2 3.5 "
            "or newer"
        )
    config = _sizes(stored)
    _check_layout(stored, layout(config))
    return stored, config


def _sizes(stored: BinaryFile) -> WhisperConfig:
    vocab_size, size = _shape(stored, EMBEDDINGS, 2)
    layers = [match[1] for match in map(LAYER.fullmatch, stored.variables) if match]
    sizes = {"vocab_size": vocab_size, "d_model": size}
    sizes["num_mel_bins"] = _shape(stored, "encoder/conv1/weight", 3)[1]
    for side, positions in POSITIONS.items():
        sizes[positions] = _shape(stored, f"{side}/position_encodings/encodings", 2)[0]
        sizes[f"{side}_ffn_dim"] = _shape(stored, f"{side}/layer_0/ffn/linear_0/weight", 2)[0]
        sizes[f"{side}_layers"] = layers.count(side)
        heads = _scalar(stored, HEADS[side])
        sizes[f"{side}_attention_heads"] = int(heads) if heads.is_integer() else heads
    check_sizes(sizes, str(stored.path))
    return scratch_config(0.0, **sizes)


def _shape(stored: BinaryFile, name: str, rank: int) -> tuple[int, ...]:
    variable = stored.variables.get(name)
    if variable is None or len(variable.shape) != rank:
        problem = "missing" if variable is None else f"of shape {variable.shape}"
        raise InputError(f"{stored.path}: {name} is {problem}; allowed: of rank {rank}; {REMEDY}")
    return variable.shape


def _scalar(stored: BinaryFile, name: str) -> float:
    _shape(stored, name, 0)
    return float(stored.read(name))


def _check_layout(stored: BinaryFile, expected: Mapping[str, Stored]) -> None:
    variables = stored.variables
    fixed = FIXED | {name: value for name, value in FIXED_OPTIONAL.items() if name in variables}
    scalars = {*HEADS.values(), *fixed, *(name for name in NOT_USED if name in variables)}
    shapes = {name: variable.shape for name, variable in expected.items()}
    shapes |= {PROJECTION: shapes[EMBEDDINGS]} | dict.fromkeys(scalars, ())
    # Integers have scales; open_binary has checked their shapes.
    shapes |= {
        name + SCALE: variables[name + SCALE].shape
        for name in [*shapes]
        if name in variables and variables[name].shape and variables[name].type.startswith("int")
    }
    problems = [f"{name} is missing" for name in shapes if name not in variables]
    problems += [f"{name} is no variable of Whisper" for name in variables if name not in shapes]
    problems += [
        f"{name} is {variables[name].shape} instead of {shape}"
        for name, shape in shapes.items()
        if name in variables and variables[name].shape != shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise InputError(f"{stored.path}: {'; '.join(problems[:3])}{more}; {REMEDY}")
    for name, value in fixed.items():
        if _scalar(stored, name) != value:
            raise InputError(
                f"{stored.path}: {name}: {_scalar(stored, name):g}; allowed: {value}, as every "
                "Whisper has it; give another model"
            )
    if variables[PROJECTION] is not variables[EMBEDDINGS]:
        raise InputError(
            f"{stored.path}: {PROJECTION} is not an alias of {EMBEDDINGS}; allowed: tied weights, "
            "as every Whisper has them; give another model"
        )
