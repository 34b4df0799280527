"""ctypes declarations of the native kernels: argument structures and function signatures."""

import ctypes
from ctypes import POINTER, c_double, c_float, c_int64, c_void_p
from functools import cache
from typing import Any

import torch

from espnet_medusa.decoding.runtime.native.build import load_library

ACTIVATIONS = {None: 0, "gelu": 1, "silu": 2, "relu": 3}  # enum Activation in linear.h
number, pointer = c_int64, c_void_p


def structure(*fields: tuple[type, str]) -> type[ctypes.Structure]:
    """Define a structure by the types of its members, and their names separated by spaces."""
    members = [(name, kind) for kind, names in fields for name in names.split()]
    return type("Arguments", (ctypes.Structure,), {"_fields_": members})


# In linear.h: Linear, Norm.
LinearArguments = structure(
    (number, "outputs inputs bits"),
    (pointer, "blocks scales corrections bias"),
    (number, "activation"),
)
NormArguments = structure((pointer, "weight bias"), (c_double, "epsilon"))
# In kernels.cpp: Layer, Call.
LayerArguments = structure(
    (NormArguments, "self_norm cross_norm feed_forward_norm"),
    (LinearArguments, "queries_keys_values self_output cross_queries cross_output inner outer"),
)
CallArguments = structure(
    (number, "utterances heads head_size"),
    (pointer, "first_row joined slots"),
    (number, "capacity"),
    (pointer, "known visible"),
    (number, "width"),
    (pointer, "packed"),
    (number, "frames"),
    (pointer, "encoder_out_mask"),
    (number, "threads"),
)
# In encoder.h: EncoderLayer, Frames.
EncoderLayerArguments = structure(
    (NormArguments, "self_norm feed_forward_norm"),
    (LinearArguments, "queries_keys_values self_output inner outer"),
)
FramesArguments = structure(
    (number, "utterances frames heads head_size"), (pointer, "lengths mask"), (number, "threads")
)
# In draft_chain.h: AttendingHeads, Chain.
AttendingHeadsArguments = structure(
    (NormArguments, "state_norm token_norm cross_norm feed_forward_norm output"),
    (LinearArguments, "fuse queries cross_output inner outer"),
)
ChainArguments = structure(
    (number, "utterances heads head_size"),
    (pointer, "first_row packed"),
    (number, "frames"),
    (pointer, "encoder_out_mask"),
    (number, "steps threads"),
)
# In shortlist.h: Shortlist.
ShortlistArguments = structure((LinearArguments, "reduce scores"), (number, "panels"))
# In best_token.h: Restriction.
RestrictionArguments = structure(
    (pointer, "blocked rows"),
    (number, "eos"),
    (pointer, "eos_scores groups"),
    (number, "last_group renormalize"),
)
# In greedy_loop.h: LoopModel, LoopDrafts, LoopPlan, LoopRules, LoopRow.
LoopModelArguments = structure(
    (pointer, "layers"),
    (number, "num_layers"),
    (pointer, "norm projection positions packed slots"),
    (number, "capacity"),
)
LoopDraftsArguments = structure(
    (number, "depth heads_depth first_time after_times"),
    (c_float, "least"),
    (pointer, "heads projection list vocabulary packed"),
)
LoopPlanArguments = structure(
    (pointer, "depths"), (number, "trial trial_calls calls"), (pointer, "running used seconds")
)
LoopRulesArguments = structure(
    (pointer, "blocked"), (number, "masks eos renormalize first_time after_times latest_first")
)
LoopRowArguments = structure(
    (pointer, "prompt"),
    (number, "prompt_length max_length min_length asks gives_up probed"),
    (pointer, "text"),
    (number, "text_length"),
    (pointer, "probed_hidden tokens log_probs"),
    (number, "written calls nodes"),
    (pointer, "drafted accepted"),
    (c_double, "seconds draft_seconds"),
)
linear, norm = POINTER(LinearArguments), POINTER(NormArguments)
restriction = POINTER(RestrictionArguments)
heads, chain = POINTER(AttendingHeadsArguments), POINTER(ChainArguments)
shortlist = POINTER(ShortlistArguments)
layers, encoder_layers = POINTER(LayerArguments), POINTER(EncoderLayerArguments)
call, frames = POINTER(CallArguments), POINTER(FramesArguments)
SIGNATURES = {  # of the functions in kernels.cpp, in their order
    "cross_bytes": (number, number),
    "pack_weights": (pointer, number, number, number, pointer, pointer, pointer, number),
    "pack_bfloat16_weights": (pointer, number, number, pointer, number),
    "multiply_blocks": (linear, pointer, number, number, pointer, number),
    "encode_layers": (encoder_layers, number, norm, frames, pointer, pointer, pointer),
    "attend": (frames, pointer, pointer),
    "unpack_weights": (linear, pointer, number, pointer, number),
    "linear": (linear, pointer, number, pointer, pointer, number),
    "normalize_rows": (norm, pointer, number, number, pointer),
    "project_cross": (linear, pointer, number, number, number, pointer, number),
    "best_tokens": (pointer, number, number, restriction, pointer, pointer, pointer, number),
    "top_tokens": (pointer, number, number, restriction, number, pointer, pointer, number),
    "pack_cross": (pointer, number, number, number, number, pointer, number),
    "draft_chain": (heads, linear, shortlist, chain, pointer, pointer, c_float, pointer, pointer),
    "advance_states": (heads, chain, pointer, pointer, pointer),
    "extend_layers": (layers, number, call, POINTER(pointer), pointer, pointer),
    "begin_chains": (
        *map(POINTER, (LoopModelArguments, LoopDraftsArguments, LoopRulesArguments)),
        POINTER(LoopPlanArguments),
        *(call, POINTER(LoopRowArguments)),
    ),
    "run_chains": (pointer,),
    "end_chains": (pointer,),
}


@cache
def kernels() -> ctypes.CDLL | None:
    """Return the kernels with declared signatures, or None if they are unavailable."""
    library = load_library()
    if library is not None:
        library.cross_bytes.restype = library.run_chains.restype = number
        library.begin_chains.restype = pointer
        for name, types in SIGNATURES.items():
            getattr(library, name).argtypes = types
    return library


def arguments_of(kind: type[ctypes.Structure], packed: Any) -> ctypes.Structure:
    """Return a structure whose fields are ``packed.NAME.arguments``, for each field's name."""
    return kind(*(getattr(packed, name).arguments for name, _ in kind._fields_))


def address(tensor: torch.Tensor | None) -> int | None:
    """Return the address of a contiguous tensor's data; None for None."""
    return None if tensor is None else tensor.data_ptr()


def call_kernel(name: str, *arguments: Any) -> None:
    """Call a kernel; tensors become addresses."""
    addresses = (address(a) if isinstance(a, torch.Tensor) else a for a in arguments)
    getattr(kernels(), name)(*addresses)


def run_kernel(name: str, *arguments: Any) -> None:
    """Call a kernel whose last argument is the number of threads; tensors become addresses."""
    call_kernel(name, *arguments, torch.get_num_threads())
