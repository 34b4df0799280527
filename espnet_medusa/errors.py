"""Errors that a user can correct; commands print them as one line, without a traceback."""


class InputError(ValueError):
    """An invalid input; the message has its place, its value, the allowed values and a remedy."""


def first_line(error: BaseException | None) -> str:
    """Return the first line of a library's error message, or its class if the message is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
