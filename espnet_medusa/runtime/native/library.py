"""The kernels' arguments as Python hands them over."""

import ctypes
from ctypes import POINTER, c_double, c_int64, c_void_p
from functools import cache

import torch

from espnet_medusa.runtime.native.build import load_library

ACTIVATIONS = {None: 0, "gelu": 1, "silu": 2, "relu": 3}  # as linear.h numbers them


class LinearArguments(ctypes.Structure):
    """``Linear`` in linear.h."""

    _fields_ = (
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("blocks", c_void_p),
        ("scales", c_void_p),
        ("corrections", c_void_p),
        ("bias", c_void_p),
        ("activation", c_int64),
    )


class NormArguments(ctypes.Structure):
    """``Norm`` in linear.h."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_double))


class LayerArguments(ctypes.Structure):
    """``Layer`` in kernels.cpp."""

    _fields_ = (
        *((name, NormArguments) for name in ("own_norm", "cross_norm", "feed_forward_norm")),
        *(
            (name, LinearArguments)
            for name in (
                *("queries_keys_values", "own_output"),
                *("cross_queries", "cross_output"),
                *("inner", "outer"),
            )
        ),
    )


class EncoderLayerArguments(ctypes.Structure):
    """``EncoderLayer`` in encoder.h."""

    _fields_ = (
        *((name, NormArguments) for name in ("own_norm", "feed_forward_norm")),
        *(
            (name, LinearArguments)
            for name in ("queries_keys_values", "own_output", "inner", "outer")
        ),
    )


class FramesArguments(ctypes.Structure):
    """``Frames`` in encoder.h."""

    _fields_ = (
        *((name, c_int64) for name in ("utterances", "frames", "heads", "head_size")),
        *(("lengths", c_void_p), ("threads", c_int64)),
    )


class CallArguments(ctypes.Structure):
    """``Call`` in kernels.cpp."""

    _fields_ = (
        *(("utterances", c_int64), ("heads", c_int64), ("head_size", c_int64)),
        ("first_row", c_void_p),
        *(("joined", c_void_p), ("slots", c_void_p), ("capacity", c_int64), ("known", c_int64)),
        *(("seen", c_void_p), ("width", c_int64)),
        *(("packed", c_void_p), ("frames", c_int64), ("memory_mask", c_void_p)),
        ("threads", c_int64),
    )


class AttendingHeadsArguments(ctypes.Structure):
    """``AttendingHeads`` in draft_chain.h."""

    _fields_ = (
        *(
            (name, NormArguments)
            for name in ("state_norm", "token_norm", "cross_norm", "feed_forward_norm", "norm")
        ),
        *((name, LinearArguments) for name in ("fuse", "queries", "found", "inner", "outer")),
    )


class ChainArguments(ctypes.Structure):
    """``Chain`` in draft_chain.h."""

    _fields_ = (
        *(("utterances", c_int64), ("heads", c_int64), ("head_size", c_int64)),
        ("first_row", c_void_p),
        *(("packed", c_void_p), ("frames", c_int64), ("memory_mask", c_void_p)),
        *(("steps", c_int64), ("threads", c_int64)),
    )


class RestrictionArguments(ctypes.Structure):
    """``Restriction`` in best_token.h."""

    _fields_ = (
        *(("blocked", c_void_p), ("rows", c_void_p)),
        *(("eos", c_int64), ("eos_scores", c_void_p)),
    )


@cache
def kernels() -> ctypes.CDLL | None:
    """The kernels with the types of their arguments; None where there are none."""
    library = load_library()
    if library is not None:
        number, pointer = c_int64, c_void_p
        library.memory_bytes.restype = number
        library.memory_bytes.argtypes = (number,) * 2
        library.pack_weights.argtypes = (pointer, *(number,) * 2, *(pointer,) * 3, number)
        library.pack_rounded_weights.argtypes = (pointer, *(number,) * 2, pointer, number)
        library.unpack_weights.argtypes = (
            *(POINTER(LinearArguments), pointer, number, pointer, number),
        )
        library.linear.argtypes = (
            *(POINTER(LinearArguments), pointer, number, *(pointer,) * 2, number),
        )
        library.multiply_blocks.argtypes = (
            *(POINTER(LinearArguments), pointer, *(number,) * 2, pointer, number),
        )
        library.encode_layers.argtypes = (
            *(POINTER(EncoderLayerArguments), number, POINTER(NormArguments)),
            *(POINTER(FramesArguments), *(pointer,) * 3),
        )
        library.project_memory.argtypes = (
            *(POINTER(LinearArguments), pointer, *(number,) * 3, pointer, number),
        )
        library.pack_memories.argtypes = (pointer, *(number,) * 4, pointer, number)
        library.draft_chain.argtypes = (
            *(POINTER(AttendingHeadsArguments), POINTER(LinearArguments)),
            *(POINTER(ChainArguments), *(pointer,) * 2),
        )
        library.advance_states.argtypes = (
            *(POINTER(AttendingHeadsArguments), POINTER(ChainArguments), *(pointer,) * 3),
        )
        library.normalize_rows.argtypes = (
            *(POINTER(NormArguments), pointer, *(number,) * 2, pointer),
        )
        library.best_tokens.argtypes = (
            *(pointer, *(number,) * 2, POINTER(RestrictionArguments), *(pointer,) * 2, number),
        )
        library.top_tokens.argtypes = (
            *(pointer, *(number,) * 2, POINTER(RestrictionArguments), number),
            *(*(pointer,) * 2, number),
        )
        library.extend_layers.argtypes = (
            *(POINTER(LayerArguments), number, POINTER(CallArguments), POINTER(pointer)),
            *(pointer,) * 2,
        )
    return library


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Where a contiguous tensor's numbers are."""
    return None if tensor is None else tensor.data_ptr()
