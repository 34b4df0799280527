"""Freed memory that is kept for the next call."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_BLOCK = 32 << 20  # that glibc lets the heap serve
KEPT_BYTES = 256 << 20


def keep_freed_memory() -> None:
    """Have glibc keep large blocks that this process frees; nothing happens elsewhere.

    It gives them back at once, and each page of a block that is asked for anew costs a fault. Rows
    of logits over Whisper's vocabulary come and go in every decoder call.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
