"""Errors of functions and of commands, by the parts of the message that matter."""

import functools
import inspect
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from espnet_medusa.data.errors import InputError


class Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def exit_status(main: Callable, *words: object) -> int:
    try:
        main([*map(str, words)])
    except SystemExit as stop:
        return stop.code
    return 0


def refuses(*rows: tuple, error: type[BaseException] = InputError) -> Callable:
    """Parametrize a test that must raise an error of one line; rows end with its pattern."""

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def run(message: str, **values) -> None:
            with pytest.raises(error, match=message) as caught:
                test(**values)
            assert "\n" not in str(caught.value)

        names = [*inspect.signature(test).parameters]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(name, kind) for name in (*names, "message")]
        run.__signature__ = inspect.Signature(parameters)
        parts = [*names[: len(rows[0]) - 1], "message"]
        # Ids are the same in all processes: functions have their names.
        mark = pytest.mark.parametrize(parts, rows, ids=lambda x: getattr(x, "__name__", str(x)))
        return mark(run)

    return decorate


def assert_refused(
    message: str, call: Callable, *given: object, error: type[BaseException] = InputError, **options
) -> str:
    """Expect an error of one line from a call; return it. ``message`` is a pattern."""
    with pytest.raises(error, match=message) as caught:
        call(*given, **options)
    (line,) = str(caught.value).splitlines()
    return line


@contextmanager
def refused(*parts: object, error: type[BaseException] = ValueError) -> Iterator:
    """Expect an error of one line that contains every part."""
    with pytest.raises(error) as caught:
        yield caught
    line = str(caught.value)
    assert "\n" not in line
    assert [part for part in parts if str(part) not in line] == [], line


@contextmanager
def allocates_less_than(most_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


@contextmanager
def command_refused(capsys, *parts: object, status: int = 1) -> Iterator[None]:
    """Expect a command to print every part and to exit with this status."""
    with pytest.raises(SystemExit) as end:
        yield
    printed = "".join(capsys.readouterr())
    assert end.value.code == status
    assert [part for part in parts if str(part) not in printed] == [], printed
