"""Kernels as processors of several kinds run them, on several threads."""

import os
from contextlib import contextmanager

import pytest
import torch

from espnet_medusa.runtime.native import build, library
from espnet_medusa.runtime.native.build import AVX512_VNNI, VARIABLE, usable_sets

NAMES = [one.name for one in usable_sets()]
# Instructions, and options for the compiler: AVX_VNNI's way is tested in AVX-512's encoding, too.
KINDS = [(name, "") for name in NAMES]
KINDS += [(AVX512_VNNI.name, " -DHALVES")] * (AVX512_VNNI.name in NAMES)
with_kernels = pytest.mark.skipif(library.kernels() is None, reason="no kernels of our own here")


def forget():
    """Kernels are loaded anew."""
    library.kernels.cache_clear()
    build.load_library.cache_clear()


@contextmanager
def running(kind: tuple[str, str]):
    """Kernels of a kind, inside."""
    name, options = kind
    changed = {"CXX": " ".join(build.find_compiler()) + options, VARIABLE: name}
    before = {key: os.environ.get(key) for key in changed}
    os.environ.update(changed)
    forget()
    try:
        assert library.kernels() is not None
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key)
            if value is not None:
                os.environ[key] = value
        forget()


@pytest.fixture(params=KINDS, ids="".join)
def kind(request):
    """Kernels as this processor runs them, and as lesser ones would."""
    with running(request.param):
        yield request.param[0]


@contextmanager
def some_threads(count: int):
    """So many of torch's, inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)
