"""Weights in a memory-mapped file, whose pages leave the memory after a runtime has packed them."""

import ctypes
import mmap

import torch


class MappedWeight(torch.nn.Parameter):
    """A weight whose storage is part of a mapped file, in the file's type.

    The file must not change. Modules cannot compute with a weight of another type than theirs, but
    the runtimes convert what they pack.
    """

    mapped: torch.Tensor | None = None  # the part of the file; None: a deep copy

    def to(self, *arguments, **options) -> "MappedWeight":
        """Return this weight: ESPnet converts a model after it is loaded, which would copy it."""
        return self


def page_out(weight: torch.Tensor, rows: slice = slice(None)) -> None:
    """Drop the pages of some rows of a ``MappedWeight`` from memory; leave other tensors alone."""
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    mapped = getattr(weight, "mapped", None)
    # Only pages of the file can be read again: those of converted values would be lost.
    same = mapped is not None and weight.data_ptr() == mapped.data_ptr()
    if advise is None or not (same and mapped.is_contiguous()):
        return
    part = mapped[rows]
    first = -(-part.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = part.data_ptr() + part.nbytes - first
    if size > 0:
        advise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def copy_mapped_weights(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Replace mapped weights by copies in ``dtype``, after which the file may change."""
    for child in module.modules():
        for name, weight in child.named_parameters(recurse=False):
            if isinstance(weight, MappedWeight):
                values = weight.data.to(dtype, copy=True)
                copied = torch.nn.Parameter(values, weight.requires_grad)
                setattr(child, name, copied)
