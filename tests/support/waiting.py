"""The time of tests: waiting for processes on busy machines, and cases of ``make test-all``."""

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


def full_length(*values: object) -> list:
    """Return values of a parameter that repeat a path, which only ``make test-all`` tests."""
    import pytest  # not for the servers that only wait

    return [pytest.param(value, marks=pytest.mark.full_length) for value in values]
