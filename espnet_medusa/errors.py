"""Errors that a user can correct; commands print them as one line, without a traceback."""


class InputError(ValueError):
    """A wrong input: names its place, the value received, what is allowed, and what to do."""


def first_line(error: BaseException | None) -> str:
    """Return the first line of a library's error message, or the error's class without one."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
