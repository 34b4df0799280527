"""ctypes declarations of the native kernels: argument structures and function signatures."""

import ctypes
from ctypes import POINTER, c_double, c_int64, c_void_p
from functools import cache

import torch

from espnet_medusa.runtime.native.build import load_library

ACTIVATIONS = {None: 0, "gelu": 1, "silu": 2, "relu": 3}  # enum Activation in linear.h


def members(kind: type, names: str) -> list[tuple[str, type]]:
    """Return structure fields of one C type."""
    return [(name, kind) for name in names.split()]


class LinearArguments(ctypes.Structure):
    """``Linear`` in linear.h."""

    _fields_ = (
        *members(c_int64, "outputs inputs"),
        *members(c_void_p, "blocks scales corrections bias"),
        ("activation", c_int64),
    )


class NormArguments(ctypes.Structure):
    """``Norm`` in linear.h."""

    _fields_ = (*members(c_void_p, "weight bias"), ("epsilon", c_double))


class LayerArguments(ctypes.Structure):
    """``Layer`` in kernels.cpp."""

    _fields_ = (
        *members(NormArguments, "self_norm cross_norm feed_forward_norm"),
        *members(LinearArguments, "queries_keys_values self_output cross_queries cross_output"),
        *members(LinearArguments, "inner outer"),
    )


class EncoderLayerArguments(ctypes.Structure):
    """``EncoderLayer`` in encoder.h."""

    _fields_ = (
        *members(NormArguments, "self_norm feed_forward_norm"),
        *members(LinearArguments, "queries_keys_values self_output inner outer"),
    )


class FramesArguments(ctypes.Structure):
    """``Frames`` in encoder.h."""

    _fields_ = (
        *members(c_int64, "utterances frames heads head_size"),
        *(("lengths", c_void_p), ("mask", c_void_p), ("threads", c_int64)),
    )


class CallArguments(ctypes.Structure):
    """``Call`` in kernels.cpp."""

    _fields_ = (
        *members(c_int64, "utterances heads head_size"),
        *members(c_void_p, "first_row joined slots"),
        *members(c_int64, "capacity known"),
        *(("visible", c_void_p), ("width", c_int64)),
        *(("packed", c_void_p), ("frames", c_int64), ("memory_mask", c_void_p)),
        ("threads", c_int64),
    )


class AttendingHeadsArguments(ctypes.Structure):
    """``AttendingHeads`` in draft_chain.h."""

    _fields_ = (
        *members(NormArguments, "state_norm token_norm cross_norm feed_forward_norm norm"),
        *members(LinearArguments, "fuse queries cross_output inner outer"),
    )


class ChainArguments(ctypes.Structure):
    """``Chain`` in draft_chain.h."""

    _fields_ = (
        *members(c_int64, "utterances heads head_size"),
        *members(c_void_p, "first_row packed"),
        *(("frames", c_int64), ("memory_mask", c_void_p)),
        *members(c_int64, "steps threads"),
    )


class RestrictionArguments(ctypes.Structure):
    """``Restriction`` in best_token.h."""

    _fields_ = (
        *(*members(c_void_p, "blocked rows"), ("eos", c_int64), ("eos_scores", c_void_p)),
        *(("groups", c_void_p), *members(c_int64, "last_group renormalize")),
    )


number, pointer = c_int64, c_void_p
linear, norm = POINTER(LinearArguments), POINTER(NormArguments)
restriction = POINTER(RestrictionArguments)
heads, chain = POINTER(AttendingHeadsArguments), POINTER(ChainArguments)
layers, encoder_layers = POINTER(LayerArguments), POINTER(EncoderLayerArguments)
call, frames = POINTER(CallArguments), POINTER(FramesArguments)
SIGNATURES = {  # of the functions in kernels.cpp, in their order
    "memory_bytes": (number, number),
    "pack_weights": (pointer, number, number, pointer, pointer, pointer, number),
    "pack_bfloat16_weights": (pointer, number, number, pointer, number),
    "multiply_blocks": (linear, pointer, number, number, pointer, number),
    "encode_layers": (encoder_layers, number, norm, frames, pointer, pointer, pointer),
    "attend": (frames, pointer, pointer),
    "unpack_weights": (linear, pointer, number, pointer, number),
    "linear": (linear, pointer, number, pointer, pointer, number),
    "normalize_rows": (norm, pointer, number, number, pointer),
    "project_memory": (linear, pointer, number, number, number, pointer, number),
    "best_tokens": (pointer, number, number, restriction, pointer, pointer, number),
    "top_tokens": (pointer, number, number, restriction, number, pointer, pointer, number),
    "pack_memories": (pointer, number, number, number, number, pointer, number),
    "draft_chain": (heads, linear, chain, pointer, pointer),
    "advance_states": (heads, chain, pointer, pointer, pointer),
    "extend_layers": (layers, number, call, POINTER(pointer), pointer, pointer),
}


@cache
def kernels() -> ctypes.CDLL | None:
    """Return the kernels with declared signatures, or None if they are unavailable."""
    library = load_library()
    if library is not None:
        library.memory_bytes.restype = number
        for name, types in SIGNATURES.items():
            getattr(library, name).argtypes = types
    return library


def address(tensor: torch.Tensor | None) -> int | None:
    """Return the address of a contiguous tensor's data; None for None."""
    return None if tensor is None else tensor.data_ptr()
