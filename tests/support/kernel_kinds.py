"""Kernels as processors of several kinds run them, on several threads."""

from contextlib import contextmanager

import torch

from espnet_medusa.runtime.native import build, library

KINDS = {"": None, " -DPORTABLE=1": "AVX512_VNNI, AVX512_BF16", " -DPORTABLE=2": "AVX512_VNNI"}


def forget():
    """Kernels are loaded anew."""
    library.kernels.cache_clear()
    build.load_library.cache_clear()


@contextmanager
def some_threads(count: int):
    """So many of torch's, inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)
