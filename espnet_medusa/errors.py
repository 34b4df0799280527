"""Errors that a user can correct; commands print them as one line, without a traceback."""


class InputError(ValueError):
    """A user error; the message has the option or file, its value, what is allowed, a remedy."""


def first_line(error: BaseException | None) -> str:
    """Return the first line of a library's error message, or its class if the message is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
