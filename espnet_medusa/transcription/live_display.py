"""Shows live text: JSON lines, or a line of a terminal whose tentative words are rewritten."""

import json
import unicodedata
from collections.abc import Callable
from typing import Any, TextIO

from espnet_medusa.inference.live.live_words import LiveUpdate

DIM, NORMAL, CLEAR = "\x1b[2m", "\x1b[0m", "\r\x1b[K"
Show = Callable[[LiveUpdate], None]


def as_fields(update: LiveUpdate) -> dict[str, Any]:
    """Return the fields of a JSON line; times in s, None without new words."""
    words, delay_s = update.confirmed, update.delay_s
    return {
        "confirmed": "".join(word.text for word in words),
        "tentative": "".join(word.text for word in update.tentative),
        "start": round(words[0].start_s, 2) if words else None,
        "end": round(words[-1].end_s, 2) if words else None,
        "audio_s": round(update.audio_s, 2),
        "delay_s": None if delay_s is None else round(delay_s, 2),
    }


def json_lines(stream: TextIO) -> Show:
    """Write a JSON line per update."""

    def show(update: LiveUpdate) -> None:
        stream.write(json.dumps(as_fields(update), ensure_ascii=False) + "\n")
        stream.flush()

    return show


class Terminal:
    """Writes confirmed words, wrapped at ``width`` columns, and then dimmed tentative words.

    Only the last line is rewritten, so that scrolling and other output cannot disturb it.
    """

    def __init__(self, stream: TextIO, width: int):
        self.stream, self.most, self.line = stream, max(width - 1, 10), ""

    def __call__(self, update: LiveUpdate) -> None:
        self.stream.write(CLEAR)
        for word in update.confirmed:
            text = "".join(char for char in word.text if char.isprintable())
            if self.line and columns(self.line + text) > self.most:
                self.stream.write(self.line + "\n")
                self.line = ""
            self.line += text if self.line else text.lstrip()
        tentative = "".join(word.text for word in update.tentative)
        shown = ""
        for char in filter(str.isprintable, tentative if self.line else tentative.lstrip()):
            if columns(self.line + shown + char) > self.most:
                break
            shown += char
        self.stream.write(f"{self.line}{DIM}{shown}{NORMAL}")
        self.stream.flush()

    def end(self) -> None:
        self.stream.write("\n" if self.line else "")
        self.stream.flush()


def columns(text: str) -> int:
    """Return the width of a text in a terminal."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)
