"""A mock GPU: its tensors are in main memory, and their ``device`` is CUDA.

It refuses what a GPU refuses: operands on both devices, and, while a graph is captured, operations
that wait for the GPU. A graph repeats its operations on the memory that it was captured with. The
mock counts where the host waits.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

PACKAGE = "/espnet_medusa/"
aten = torch.ops.aten
# Their result is a number for the host, or its size depends on values.
WAITING = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default,
    aten.bincount.default, aten.equal.default, aten._unique2.default, aten.unique_dim.default,
    aten.unique_consecutive.default, aten.repeat_interleave.Tensor,
}  # fmt: skip
INDEXING = {
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
    aten._index_put_impl_.default,
}  # fmt: skip


class PretendedTensor(torch.Tensor):
    """A tensor on the mock GPU; ``held`` is the same in main memory."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> PretendedTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, real.shape, strides=real.stride(), storage_offset=real.storage_offset(),
            dtype=real.dtype, device=torch.device("cuda", 0),
        )  # fmt: skip

    def __init__(self, real: torch.Tensor):
        self.held = real

    def __repr__(self, **_) -> str:
        return f"PretendedTensor({self.held})"

    def tolist(self) -> list:
        return self.cpu().tolist()  # torch's method refuses subclasses

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function}: the mock GPU is gone")


class Graph:
    """A mock ``torch.cuda.CUDAGraph``.

    ``operations`` are functions with arguments and results; ``made`` are the results' new tensors.
    ``before`` has the values of tensors that operations change.
    """

    def __init__(self):
        self.operations: list[tuple[Callable, tuple, dict, Any]] = []
        self.made: list[torch.Tensor] = []
        self.before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def pool(self) -> tuple[int, int]:
        return (0, 1)

    def save(self, function: Any, args: tuple) -> None:
        """Save the tensor that an operation in place changes, its first argument."""
        if function._schema.is_mutable:
            self.before.append((args[0], args[0].clone()))

    def undo(self) -> None:
        """Capturing computes nothing: restore changed tensors, and spoil new ones."""
        for tensor, values in reversed(self.before):
            tensor.copy_(values)
        for tensor in self.made:
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)

    def record(self, function: Any, args: tuple, kwargs: dict, results: Any) -> None:
        self.operations.append((function, args, kwargs, results))
        places = {one.untyped_storage().data_ptr() for one in tensors_of((args, kwargs))}
        made = tensors_of(results)
        self.made += [one for one in made if one.untyped_storage().data_ptr() not in places]

    def replay(self) -> None:
        for function, args, kwargs, results in self.operations:
            again = function(*args, **kwargs)
            for old, new in zip(tensors_of(results), tensors_of(again), strict=True):
                if old is not new:
                    old.copy_(new)


class PretendedCuda(TorchDispatchMode):
    """A context with the mock GPU; ``waits`` counts the host's waits by file and function."""

    def __init__(self):
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.graphs: list[Graph] = []
        self._capturing: Graph | None = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is aten._pin_memory.default:
            pinned = args[0].clone()
            pinned.is_pinned_here = True
            return pinned
        tensors = tensors_of((args, kwargs))
        mine = [one for one in tensors if isinstance(one, PretendedTensor)]
        others = [one for one in tensors if not isinstance(one, PretendedTensor)]
        target = kwargs.get("device")
        target = None if target is None else torch.device(target).type
        if not mine and target != "cuda":
            return function(*args, **kwargs)
        if waits(function, args, kwargs, bool(mine), others):
            if self._capturing is not None:
                raise RuntimeError(f"{function}: not permitted when stream is capturing")
            self.waits[caller()] += 1
        args, kwargs = tree_map_only(PretendedTensor, lambda one: one.held, (args, kwargs))
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        if self._capturing is not None:
            self._capturing.save(function, args)
        results = function(*args, **kwargs)
        if self._capturing is not None:
            self._capturing.record(function, args, kwargs, results)
        if target == "cpu":
            return results
        known = {id(one.held): one for one in mine} | {id(one): one for one in others}
        return tree_map_only(
            torch.Tensor,
            lambda one: known[id(one)] if id(one) in known else PretendedTensor(one),
            results,
        )

    @contextmanager
    def capture(self, graph: Graph, **_) -> Iterator[None]:
        """Replace ``torch.cuda.graph``."""
        self.graphs.append(graph)
        self._capturing = graph
        try:
            yield
        finally:
            self._capturing = None
        graph.undo()


def tensors_of(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def waits(function: Any, args: tuple, options: dict, mine: bool, others: list) -> bool:
    """Return whether the host waits for the GPU, given operands there and in main memory.

    Raises:
        RuntimeError: There are operands on both devices, and the operation does not copy.
    """
    if function is aten._to_copy.default:
        if mine:
            return torch.device(options.get("device") or "cuda").type == "cpu"
        return not (options.get("non_blocking") and hasattr(args[0], "is_pinned_here"))
    if function is aten.copy_.default and others:
        return not (len(args) > 2 and args[2] and hasattr(args[1], "is_pinned_here"))
    if function in WAITING:
        return True
    if function in INDEXING:
        chosen = [one for one in args[1] if one is not None]
        return bool(others) or any(one.dtype in (torch.bool, torch.uint8) for one in chosen)
    if any(one.dim() for one in others):
        raise RuntimeError(f"{function}: operands on cuda:0 and cpu")
    return False


def caller() -> str:
    frame = sys._getframe()
    while frame is not None and PACKAGE not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return "elsewhere"
    return f"{frame.f_code.co_filename.rpartition(PACKAGE)[2]}: {frame.f_code.co_name}"


@contextmanager
def pretended_cuda() -> Iterator[PretendedCuda]:
    """Use the mock GPU; ``torch.cuda.is_available`` does not change."""
    if torch.version.cuda is not None:
        pytest.skip("the mock GPU needs the CPU build of torch; on a GPU the tests marked cuda run")
    gpu, stream = PretendedCuda(), SimpleNamespace(wait_stream=lambda other: None)
    with pytest.MonkeyPatch.context() as patch:
        for name, own in {
            "_lazy_init": lambda: None, "Stream": lambda *_: stream,
            "current_stream": lambda *_: stream, "stream": lambda *_: nullcontext(),
            "device": lambda *_: nullcontext(), "synchronize": lambda *_: None,
            "CUDAGraph": Graph, "graph": gpu.capture, "get_device_name": lambda *_: "mock GPU",
        }.items():  # fmt: skip
            patch.setattr(torch.cuda, name, own)
        # A module's weights cannot become PretendedTensor in place.
        patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
        # Otherwise the copy of torch.tensor(..., device=...) would not pass through the mode.
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with device_guard(), gpu:
                yield gpu
        finally:
            torch._C._set_only_lift_cpu_tensors(False)


@contextmanager
def device_guard() -> Iterator[None]:
    """Register the CPU's device guard for CUDA, for indexing, if torch is built without CUDA."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cpu, cuda = guards
    guards[1] = cuda or cpu
    try:
        yield
    finally:
        guards[1] = cuda
