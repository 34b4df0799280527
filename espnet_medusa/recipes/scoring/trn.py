"""The trn transcript format: the tokens of an utterance, then `(speaker-utterance)`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.data.errors import InputError, list_some
from espnet_medusa.data.files.atomic import write_atomically

# sclite splits at these only: no-break and ideographic spaces are part of a word.
ASCII_SPACE = " \t\n\v\f\r"

COMMENT_PREFIXES = (";;", "**")


@dataclass(frozen=True)
class TrnLine:
    id: str  # utterance id without its parentheses
    tokens: tuple[str, ...]  # words, characters or subword units
    line_number: int  # in its file, from 1


def split_tokens(text: str) -> list[str]:
    """Split at ASCII white space, as sclite does."""
    return re.findall(f"[^{ASCII_SPACE}]+", text)


def read_trn(path: str | Path) -> list[TrnLine]:
    """Read a trn file without its comments (`;;`, `**`) and blank lines.

    Raises InputError if a line is not UTF-8 or has no id at its end, or an id occurs twice.
    """
    lines: dict[str, TrnLine] = {}
    repeated: list[str] = []
    for number, raw_line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        try:
            text = raw_line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}: line {number}: not UTF-8 (byte 0x{raw_line[error.start]:02x} at column "
                f"{error.start + 1}); convert the file with iconv"
            ) from None
        if text.startswith(COMMENT_PREFIXES) or not text.strip(ASCII_SPACE):
            continue
        line = _parse_line(text, f"{path}: line {number}", number)
        first = lines.setdefault(line.id, line)
        if first is not line:
            repeated.append(f"{line.id} (lines {first.line_number} and {number})")
    if repeated:
        raise InputError(f"{path}: repeated ids: {list_some(repeated)}; keep one line for each id")
    return [*lines.values()]


def _parse_line(text: str, where: str, number: int) -> TrnLine:
    opening, closing = text.rfind("("), text.rfind(")")
    utterance_id = text[opening + 1 : closing]
    rest = text[closing + 1 :].strip(ASCII_SPACE)
    if opening < 0 or closing < opening or rest or split_tokens(utterance_id) != [utterance_id]:
        shown = text.strip(ASCII_SPACE)
        shown = shown if len(shown) <= 60 else f"...{shown[-57:]}"
        raise InputError(f"{where}: no '(speaker-utterance)' at the end of '{shown}'; add the id")
    if "\0" in text:
        raise InputError(f"{where}: has a NUL character; remove it")
    return TrnLine(utterance_id, tuple(split_tokens(text[:opening])), number)


def write_trn(
    path: str | Path, utterances: Mapping[str, Sequence[str]], utt2spk: Mapping[str, str]
) -> None:
    """Write lines of the form `tokens<TAB>(speaker-utterance)`, in the mapping's order.

    Raises ValueError if an utterance has no speaker, or an id or a token has invalid characters.
    """
    without_speaker = [utterance for utterance in utterances if utterance not in utt2spk]
    if without_speaker:
        names = list_some(without_speaker)
        raise ValueError(f"{path}: utterances without a speaker: {names}; add them to utt2spk")
    lines = []
    for utterance, tokens in utterances.items():
        label = f"{utt2spk[utterance]}-{utterance}"
        if set(label) & set(ASCII_SPACE + "()"):
            raise ValueError(f"{path}: id '{label}' has white space or parentheses; rename it")
        for token in tokens:
            if not token or set(token) & set(ASCII_SPACE + "\0"):
                message = f"token {token!r} is empty or has white space; split the text first"
                raise ValueError(f"{path}: {utterance}: {message}")
        text = " ".join(tokens)
        # A text that starts like a comment gets a leading blank.
        blank = " " if text.startswith(COMMENT_PREFIXES) else ""
        lines.append(f"{blank}{text}\t({label})\n")
    write_atomically(path, "".join(lines))
