"""Waiting for processes on busy machines."""

import time
from collections.abc import Callable
from pathlib import Path

HANG_S = 1800  # on two idle cores the slowest test takes a minute


def wait_for(condition: Callable[[], object]) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < HANG_S, "waited in vain"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
