"""Token lists: one token per line; line numbers are ids."""

import sys
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import write_atomically


def read_token_list(path: Path) -> list[str]:
    """Read a token list; raise InputError if it cannot be read or is not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); give one token per line") from error
    # Not splitlines(): a token may be a line separator of Unicode.
    return text.removesuffix("\n").split("\n") if text else []


def write_token_list(path: Path | str, tokens: Sequence[str]) -> None:
    """Write a token list; the path ``-`` is stdout. Raise InputError for a token of two lines."""
    # Readers, ours and ESPnet's, accept the line ends of Windows, so "\r" ends a line, too.
    if wrong := [token for token in tokens if {*token} & {"\n", "\r"}]:
        raise InputError(f"{path}: token {wrong[0]!r} has a line break; a token list allows none")
    text = "".join(f"{token}\n" for token in tokens)
    if path == "-":
        sys.stdout.write(text)
    else:
        write_atomically(path, text)
