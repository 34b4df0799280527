"""Errors that a user can correct; commands print a line per problem, without a traceback."""


class InputError(ValueError):
    """A user error; the message has the option or file, its value, what is allowed, a remedy."""


def first_line(error: BaseException | None) -> str:
    """Return the first non-blank line of an error's message, or else its class name."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
