"""Errors that a user can correct; commands print a line per problem, without a traceback."""

import logging
import traceback
from collections.abc import Iterable

logger = logging.getLogger(__name__)


class InputError(ValueError):
    """A user error; the message has the option or file, its value, what is allowed, a remedy."""


def first_line(error: BaseException | None) -> str:
    """Return the first non-blank line of an error's message, or else its class name."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def one_line(error: Exception) -> str:
    """Return the first line of an error's message, with the class unless it is a user error."""
    message = first_line(error)
    return message if isinstance(error, ValueError) else f"{message} ({type(error).__name__})"


def log_traceback(error: Exception) -> None:
    """Log the traceback of an error, unless it is a user error."""
    if not isinstance(error, ValueError):
        logger.error("".join(traceback.format_exception(error)))


def list_some(names: Iterable[str], limit: int = 10) -> str:
    """Join the first names; add the total number if there are more."""
    names = list(names)
    more = f", ... ({len(names)} in all)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
