"""Settings of this process that make inference on a CPU faster, and memory that it frees."""

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_HEAP_BLOCK = 32 << 20  # bytes
KEPT_BYTES = 256 << 20
SPIN_COUNT = 3000  # a few microseconds


def keep_freed_memory() -> None:
    """Make glibc reuse large freed blocks; do nothing with other C libraries.

    By default glibc returns such blocks to the system, and each page of a new block costs a page
    fault. Every decoder call allocates and frees logits over Whisper's vocabulary.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def trim_memory() -> None:
    """Return freed memory to the system; do nothing with C libraries other than glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def shorten_openmp_spin() -> None:
    """Reduce OpenMP's spin count while threads wait at a barrier; call this before torch is loaded.

    By default threads of GNU OpenMP, which torch uses, spin for a millisecond or longer. A layer
    has a dozen barriers. If another program shares a core, a spinning thread uses up its time
    slice, and all others wait until it runs again. A sleeping thread is scheduled immediately.
    Environment variables that are set already take precedence.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
