"""Errors that a user can correct; commands print them as one line, without a traceback."""


class InputError(ValueError):
    """A user error; the message has the option or file, its value, what is allowed, a remedy."""


def first_line(error: BaseException | None) -> str:
    """Return the first line with text of an error message, or the error's class without any."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
