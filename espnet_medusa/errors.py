"""Errors that a user can correct; commands print them as one line, without a traceback."""


class InputError(ValueError):
    """A wrong input: names its place, the value received, what is allowed, and what to do."""
