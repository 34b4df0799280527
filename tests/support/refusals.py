"""Errors of functions and of commands, by the parts of the message that matter."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


class Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def exit_status(main: Callable, *words: object) -> int:
    """Run a command; return its exit status."""
    try:
        main([*map(str, words)])
    except SystemExit as stop:
        return stop.code
    return 0


@contextmanager
def refused(*parts: object, error: type[BaseException] = ValueError) -> Iterator:
    """Expect an error of one line that contains every part."""
    with pytest.raises(error) as caught:
        yield caught
    line = str(caught.value)
    assert "\n" not in line
    assert [part for part in parts if str(part) not in line] == [], line


@contextmanager
def command_refused(capsys, *parts: object, status: int = 1) -> Iterator[None]:
    """Expect a command to print every part and to exit with this status."""
    with pytest.raises(SystemExit) as end:
        yield
    printed = "".join(capsys.readouterr())
    assert end.value.code == status
    assert [part for part in parts if str(part) not in printed] == [], printed
