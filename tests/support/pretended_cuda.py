"""A pretended GPU: tensors that say they are on CUDA and live in main memory.

All operations on them pass through here, so what a GPU refuses is refused: operands on both
devices, and, while a graph is captured, whatever waits for the GPU. A graph repeats its operations
on the memory that it was captured with. Where the host waits is counted.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, ValuesView
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

PACKAGE = "/espnet_medusa/"
aten = torch.ops.aten
# The size of what they give, or a number for the host, depends on values.
WAITING = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default,
    aten.bincount.default, aten.equal.default, aten._unique2.default, aten.unique_dim.default,
    aten.unique_consecutive.default, aten.repeat_interleave.Tensor,
}  # fmt: skip
INDEXING = {
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
    aten._index_put_impl_.default,
}  # fmt: skip
WAITS, UPLOADS = "waits", "uploads"


class PretendedTensor(torch.Tensor):
    """Says it is on the GPU.

    Attributes:
        held: The same in main memory.
    """

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
        return self.cpu().tolist()  # which torch refuses for others' kinds of tensors

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function}: the pretended GPU is gone")


class Graph:
    """A pretended ``torch.cuda.CUDAGraph``.

    Attributes:
        operations: Each with arguments and results, in real memory.
        made: What they made anew.
    """

    def __init__(self):
        self.operations: list[tuple[Callable, tuple, dict, Any]] = []
        self.made: list[torch.Tensor] = []

    def pool(self) -> tuple[int, int]:
        """Where its memory comes from."""
        return (0, 1)

    def replay(self) -> None:
        """Do it all again, on the same memory."""
        for function, args, kwargs, results in self.operations:
            again = function(*args, **kwargs)
            for old, new in zip(tensors_of(results), tensors_of(again), strict=True):
                if old is not new:
                    old.copy_(new)

    def forget_values(self) -> None:
        """Capturing computes nothing."""
        for tensor in self.made:
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)


class PretendedCuda(TorchDispatchMode):
    """While it is entered, ``device="cuda"`` is this GPU.

    Attributes:
        waits: How often the host waited for the GPU, by file and function of the package.
        uploads: Copies to the GPU that were only asked for.
        graphs: Those that were captured.
    """

    def __init__(self):
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.uploads = 0
        self.graphs: list[Graph] = []
        self._capturing: Graph | None = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is aten._pin_memory.default:
            pinned = args[0].clone()
            pinned.is_pinned_here = True
            return pinned
        tensors = tensors_of((args, kwargs.values()))
        mine = [one for one in tensors if isinstance(one, PretendedTensor)]
        others = [one for one in tensors if not isinstance(one, PretendedTensor)]
        target = kwargs.get("device")
        target = None if target is None else torch.device(target).type
        if not mine and target != "cuda":
            return function(*args, **kwargs)
        self._note(function, copying(function, args, kwargs, mine, others))
        args, kwargs = replaced((args, kwargs), lambda one: getattr(one, "held", one))
        if target is not None:
            kwargs = kwargs | {"device": torch.device("cpu")}
        results = function(*args, **kwargs)
        if self._capturing is not None:
            self._record(function, args, kwargs, results)
        if target == "cpu":
            return results
        known = {id(one.held): one for one in mine} | {id(one): one for one in others}
        return replaced(
            results, lambda one: known[id(one)] if id(one) in known else PretendedTensor(one)
        )

    def _note(self, function: Any, how: str | None) -> None:
        if how == WAITS:
            if self._capturing is not None:
                raise RuntimeError(f"{function}: not permitted when stream is capturing")
            self.waits[asked_by()] += 1
        self.uploads += how == UPLOADS

    def _record(self, function: Any, args: tuple, kwargs: dict, results: Any) -> None:
        graph = self._capturing
        graph.operations.append((function, args, kwargs, results))
        given = tensors_of((args, kwargs.values()))
        places = {one.untyped_storage().data_ptr() for one in given}
        made = [
            one for one in tensors_of(results) if one.untyped_storage().data_ptr() not in places
        ]
        graph.made += made

    @contextmanager
    def capture(self, graph: Graph, **_) -> Iterator[None]:
        """As ``torch.cuda.graph``."""
        self.graphs.append(graph)
        self._capturing = graph
        try:
            yield
        finally:
            self._capturing = None
        graph.forget_values()


def tensors_of(values: Any) -> list[torch.Tensor]:
    """All tensors in nested sequences."""
    if isinstance(values, torch.Tensor):
        return [values]
    nested = isinstance(values, list | tuple | ValuesView)
    return [one for value in values for one in tensors_of(value)] if nested else []


def replaced(values: Any, by: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nested sequences and tables with other tensors."""
    if isinstance(values, torch.Tensor):
        return by(values)
    if isinstance(values, dict):
        return {name: replaced(value, by) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)([replaced(value, by) for value in values])
    return values


def copying(
    function: Any,
    args: tuple,
    options: dict,
    mine: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
) -> str | None:
    """Whether an operation makes the host wait for the GPU, or copies to it without.

    Raises:
        RuntimeError: It has operands on both and is not one that copies.
    """
    if function is aten._to_copy.default:
        if mine:
            away = options.get("device") is not None
            return WAITS if away and torch.device(options["device"]).type == "cpu" else None
        alone = options.get("non_blocking") and hasattr(args[0], "is_pinned_here")
        return UPLOADS if alone else WAITS
    if function is aten.copy_.default and others:
        alone = len(args) > 2 and args[2] and hasattr(args[1], "is_pinned_here")
        return UPLOADS if alone else WAITS
    if function in WAITING:
        return WAITS
    if function in INDEXING:
        chosen = [one for one in args[1] if one is not None]
        masks = any(one.dtype in (torch.bool, torch.uint8) for one in chosen)
        return WAITS if masks or others else None
    if any(one.dim() for one in others):
        raise RuntimeError(f"{function}: operands on cuda:0 and cpu")
    return None


def asked_by() -> str:
    """File and function of the package that runs."""
    frame = sys._getframe()
    while frame is not None and PACKAGE not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return "elsewhere"
    return f"{frame.f_code.co_filename.rpartition(PACKAGE)[2]}: {frame.f_code.co_name}"


@contextmanager
def pretended_cuda() -> Iterator[PretendedCuda]:
    """With this GPU; ``torch.cuda.is_available`` says as before what there really is."""
    gpu, stream = PretendedCuda(), SimpleNamespace(wait_stream=lambda other: None)
    with pytest.MonkeyPatch.context() as patch:
        for name, own in {
            "_lazy_init": lambda: None,
            "Stream": lambda *_: stream,
            "current_stream": lambda *_: stream,
            "stream": lambda *_: nullcontext(),
            "synchronize": lambda *_: None,
            "CUDAGraph": Graph,
            "graph": gpu.capture,
        }.items():
            patch.setattr(torch.cuda, name, own)
        # A module's weights are replaced: in those there are, our kind of tensor has no room.
        overwrite = "get_overwrite_module_params_on_conversion"
        patch.setattr(torch.__future__, overwrite, lambda: True)
        # Else torch.tensor(..., device=...) would make its copy behind our back.
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with device_guard(), gpu:
                yield gpu
        finally:
            torch._C._set_only_lift_cpu_tensors(False)


@contextmanager
def device_guard() -> Iterator[None]:
    """Indexing switches to its operands' device; a build for CPUs knows how to for these alone."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cpu, cuda = guards
    guards[1] = cuda or cpu
    try:
        yield
    finally:
        guards[1] = cuda
