"""Mistakes that a user can mend; commands print them as one line, without a traceback."""


class InputError(ValueError):
    """Says what was received, where, what is allowed, and what to do."""
