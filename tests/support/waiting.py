"""Waiting for what happens, however busy the machine is."""

import time
from collections.abc import Callable
from pathlib import Path

# What takes longer hangs: on two idle cores the slowest test takes a minute.
HANG_S = 1800


def wait_for(condition: Callable[[], object]) -> None:
    """Return once it is true."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < HANG_S, "waited in vain"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
