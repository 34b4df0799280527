"""Native kernels for several instruction sets and numbers of threads."""

import ctypes
import os
from contextlib import contextmanager
from functools import cache
from unittest import mock

import pytest
import torch

from espnet_medusa.decoding.runtime.native import build, library

NAMES = [instructions.name for instructions in build.usable_sets()]
# Instruction set and compiler options; -DHALVES compiles avx2.h instead of avx512.h.
KINDS = [*NAMES, *(f"{name} -DHALVES" for name in NAMES if name == build.AVX512_VNNI.name)]
with_kernels = pytest.mark.skipif(library.kernels() is None, reason="our kernels are not available")


def forget():
    library.kernels.cache_clear()
    build.load_library.cache_clear()


@cache
def load(kind: str) -> ctypes.CDLL:
    """Load the kernels of a kind, once per process, because this also starts the compiler."""
    name, *options = kind.split()
    compiler = " ".join([*build.find_compiler(), *options])
    with mock.patch.dict(os.environ, {"CXX": compiler, build.VARIABLE: name}):
        return build.open_best(build.usable_sets())


@contextmanager
def running(kind: str):
    with mock.patch.object(library, "load_library", lambda: load(kind)):
        library.kernels.cache_clear()
        try:
            yield
        finally:
            library.kernels.cache_clear()


@pytest.fixture(params=KINDS)
def kind(request):
    """Our kernels for each instruction set that this processor supports."""
    with running(request.param):
        yield request.param.split()[0]


def attends_in_integers(kind: str) -> bool:
    """Return whether attention of an instruction set is in integers, not in bfloat16."""
    flags = {instructions.name: instructions.flags for instructions in build.BEST_FIRST}
    return not build.AVX512_BF16.flags <= flags[kind]


@contextmanager
def some_threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rounded(rows: torch.Tensor, most: int = 127) -> torch.Tensor:
    """Return rows rounded to integers up to ``most`` with one scale each, in float64."""
    largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-20)
    return (rows * (most / largest)).round().double() * (largest.double() / most)
