"""Subtitles (srt, vtt): cues of segments or of lines of words, as openai-whisper writes them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_at_least, option
from espnet_medusa.inference.longform.segment import Segment, Word
from espnet_medusa.networks.whisper.transcript import UNSPACED

SRT, VTT = SUBTITLES = ("srt", "vtt")
GROUP = "Subtitles (srt, vtt) with word_timestamps"
LONG_PAUSE_S = 3.0
LINE_BREAKS = r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*"
# Scripts that are written without spaces.
UNSPACED_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "MYANMAR", "IDEOGRAPHIC")


@dataclass(frozen=True)
class SubtitleOptions:
    """Layout of subtitles. Raises InputError for a value that is not allowed."""

    max_line_width: int | None = option(None, "maximum number of characters in a line", group=GROUP)
    max_line_count: int | None = option(
        None, "maximum number of lines in a cue, with max_line_width", group=GROUP
    )
    max_words_per_line: int | None = option(
        None, "maximum number of words in a cue, without max_line_width", group=GROUP
    )
    highlight_words: bool = option(False, "underline each word as it is spoken", group=GROUP)

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            check_at_least(value, 1, name)

    @property
    def given(self) -> dict[str, int | bool]:
        """The options that are not at their defaults."""
        return {
            name: one for name, one in vars(self).items() if one is not None and one is not False
        }

    @property
    def keeps_segments(self) -> bool:
        """Whether each segment begins a cue."""
        return self.max_line_width is None or self.max_line_count is None

    @property
    def unused(self) -> str | None:
        """Describe options without effect; None: there are none."""
        if self.max_line_count and not self.max_line_width:
            return "max_line_count: not used without max_line_width"
        if self.max_words_per_line and self.max_line_width:
            return "max_words_per_line: not used with max_line_width"
        return None

    def check_usable(self, word_timestamps: bool) -> None:
        """Raise InputError if an option needs word times and there are none."""
        for name, value in self.given.items() if not word_timestamps else ():
            raise InputError(f"{name}: {value}; allowed with word_timestamps: true")


AS_SEGMENTS = SubtitleOptions()


class Cue(NamedTuple):
    start_s: float
    end_s: float
    parts: list[str]  # texts of words, with spaces and line breaks between them
    spoken: int | None = None  # index of the part to underline


def as_subtitles(
    name: str,
    segments: Sequence[Segment],
    language: str | None = None,
    options: SubtitleOptions = AS_SEGMENTS,
) -> str:
    """Return srt or vtt; words have the times if there are any, and otherwise segments."""
    cues: Iterable[Cue] = _cues_of_segments(segments)
    if any(segment.words for segment in segments):
        cues = _cues_of_words(segments, language in UNSPACED, options)
        cues = _highlighted(cues) if options.highlight_words else (cue for cue, _ in cues)
    if name == VTT:
        return "WEBVTT\n\n" + "".join(
            f"{_clock(cue.start_s)} --> {_clock(cue.end_s)}\n{_text(cue, True)}\n\n" for cue in cues
        )
    return "".join(
        f"{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{_text(cue)}\n\n"
        for number, cue in enumerate(cues, start=1)
    )


def one_line(text: str) -> str:
    """Replace line breaks, which would end a cue or a row."""
    return _without_breaks(text.strip())


def _clock(seconds: float, comma: str = ".") -> str:
    """Format a time; hours are always written before a comma, as in srt."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    hour = f"{hours:02d}:" if hours or comma == "," else ""
    return f"{hour}{minutes:02d}:{whole:02d}{comma}{milliseconds:03d}"


def _text(cue: Cue, escape: bool = False) -> str:
    """Return the text of a cue, without the arrow that would end it in both formats."""
    parts = [part.replace("-->", "->") for part in cue.parts]
    if "-->" in "".join(parts):  # in several words
        parts = [re.sub("^(-?)>", "\\1\u203a", part) for part in parts]
    if escape:
        parts = [part.replace("&", "&amp;").replace("<", "&lt;") for part in parts]
    if cue.spoken is not None:
        word = parts[cue.spoken]
        bare = word.lstrip()
        parts[cue.spoken] = f"{word[: len(word) - len(bare)]}<u>{bare}</u>"
    return "".join(parts)


def _cues_of_segments(segments: Iterable[Segment]) -> Iterator[Cue]:
    for segment in segments:
        yield Cue(segment.start_s, segment.end_s, [one_line(segment.text)])


def _cues_of_words(
    segments: Iterable[Segment], unspaced: bool, options: SubtitleOptions
) -> Iterator[tuple[Cue, list[Word]]]:
    """Yield cues and their words; a segment with text but without words is a cue of its own."""
    lines, most = _Lines(options), options.max_words_per_line or 1000
    for segment in segments:
        words = [replace(word, text=_without_breaks(word.text)) for word in segment.words]
        words = _join_letters(words) if unspaced else words
        if options.max_line_width is not None:
            words = [piece for word in words for piece in _split(word, options.max_line_width)]
        if segment.text and not words:
            yield from lines.end()
            text = one_line(segment.text)
            word = Word(text, segment.start_s, segment.end_s, 0.0)
            yield Cue(segment.start_s, segment.end_s, [text]), [word]
        for number, word in enumerate(words):
            yield from lines.add(word, begins=options.keeps_segments and number % most == 0)
    yield from lines.end()


class _Lines:
    """Distributes words over lines and cues."""

    def __init__(self, options: SubtitleOptions):
        self.options, self.width = options, options.max_line_width or 1000
        self.words: list[Word] = []  # of the current cue
        self.parts: list[str] = []
        self.length, self.count = 0, 1  # characters of the line, lines of the cue

    def add(self, word: Word, begins: bool) -> Iterator[tuple[Cue, list[Word]]]:
        """Add a word; yield the cue that ends before it. ``begins``: it begins a cue."""
        most, text = self.options.max_line_count, word.text
        last_s = self.words[-1].start_s if self.words else word.start_s
        pause = not self.options.keeps_segments and word.start_s - last_s > LONG_PAUSE_S
        if self.length and not begins and not pause and self.length + len(text) <= self.width:
            self.length += len(text)
        else:
            text = text.strip()
            length = len(text)
            if begins or (most is not None and (pause or self.count >= most)):
                yield from self.end()
            elif self.length:
                self.count += 1
                text = f"\n{text}"
            self.length = length
        self.words.append(word)
        self.parts.append(text)

    def end(self) -> Iterator[tuple[Cue, list[Word]]]:
        """Yield the current cue, if there is one."""
        if self.words:
            yield Cue(self.words[0].start_s, self.words[-1].end_s, self.parts), self.words
        self.words, self.parts, self.length, self.count = [], [], 0, 1


def _highlighted(cues: Iterable[tuple[Cue, list[Word]]]) -> Iterator[Cue]:
    """Yield a cue for each word, and for pauses between them."""
    for cue, words in cues:
        last_s = cue.start_s
        for index, word in enumerate(words):
            if round(word.start_s * 1000) > round(last_s * 1000):
                yield cue._replace(start_s=last_s, end_s=word.start_s)
            yield Cue(word.start_s, word.end_s, cue.parts, index)
            last_s = word.end_s


def _without_breaks(text: str) -> str:
    return re.sub(LINE_BREAKS, " ", text)


def _is_unspaced(character: str) -> bool:
    name = unicodedata.name(character, "")
    return any(script in name for script in UNSPACED_SCRIPTS)


def _join_letters(words: Sequence[Word]) -> list[Word]:
    """Join parts of a word with spaces, such as " Py" and "thon", in a language without them."""
    joined: list[Word] = []
    for word in words:
        edge = (joined[-1].text[-1:] if joined else "") + word.text[:1]
        if len(edge) == 2 and edge.isalnum() and not any(map(_is_unspaced, edge)):
            joined[-1] = replace(joined[-1], text=joined[-1].text + word.text, end_s=word.end_s)
        else:
            joined.append(word)
    return joined


def _split(word: Word, width: int) -> list[Word]:
    """Split a word without spaces, such as a Chinese text, that is longer than a line."""
    text = word.text.strip()
    if len(text) <= width or not any(map(_is_unspaced, text)):
        return [word]
    pieces, length_s = [""], word.end_s - word.start_s
    # Marks and punctuation stay with the character before them.
    for unit in re.findall(r"(?:\w|\W)(?:(?!\w)\S)*", text):
        if pieces[-1] and len(pieces[-1]) + len(unit) > width:
            pieces.append("")
        pieces[-1] += unit
    ends = [sum(map(len, pieces[: count + 1])) / len(text) for count in range(len(pieces))]
    times = [word.start_s + length_s * share for share in (0.0, *ends)]
    pieces[0] = word.text[: len(word.text) - len(word.text.lstrip())] + pieces[0]
    return [
        Word(piece, round(start_s, 3), round(end_s, 3), word.probability)
        for piece, start_s, end_s in zip(pieces, times, times[1:], strict=False)
    ]
