"""Kernels as processors of several kinds run them, on several threads."""

from contextlib import contextmanager

import torch

from espnet_medusa.runtime.native import build, library
from espnet_medusa.runtime.native.instruction_sets import AVX512_VNNI, usable_sets

NAMES = [one.name for one in usable_sets()]
# Instructions, and options for the compiler. AVX_VNNI's way is tested by the same instructions in
# another encoding.
KINDS = [(name, "") for name in NAMES]
KINDS += [(AVX512_VNNI.name, " -DHALVES")] * (AVX512_VNNI.name in NAMES)


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
