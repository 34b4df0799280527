"""Segments and words with times, and a Kaldi data directory of them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.kaldi.data_dir import make_spk2utt
from espnet_medusa.data.kaldi.table import write_table

SEGMENTS = "segments"  # name of the folder
TABLES = ("wav.scp", "segments", "text", "utt2spk", "spk2utt")
CTM = "ctm"
CHANNEL = 1


@dataclass(frozen=True)
class Word:
    """A word with its punctuation, and its times in the recording."""

    text: str  # with the space before it, in languages with spaces
    start_s: float
    end_s: float
    probability: float  # mean over its tokens


@dataclass(frozen=True)
class Segment:
    """A segment between two timestamps, with times in the recording and values of its window."""

    seek: int  # first frame (10 ms) of the window
    start_s: float
    end_s: float
    text: str  # with the space before it; empty for a segment without duration or without text
    tokens: tuple[int, ...]  # with timestamps
    temperature: float
    average_log_probability: float  # of the window's tokens and end symbol
    compression_ratio: float  # of the window's text
    no_speech_probability: float
    words: tuple[Word, ...] = ()  # empty without word timestamps


def read_segment(fields: Mapping[str, Any]) -> Segment:
    """Build a segment from its fields as JSON has them."""
    words = tuple(Word(**word) for word in fields["words"])
    return Segment(**{**fields, "tokens": tuple(fields["tokens"]), "words": words})


def ctm_lines(recording: str, segments: Iterable[Segment]) -> str:
    """Return lines of NIST's ctm: recording, channel, start, duration, word, probability."""
    return "".join(
        f"{recording} {CHANNEL} {word.start_s:.2f} {word.end_s - word.start_s:.2f} "
        f"{word.text.strip()} {word.probability:.2f}\n"
        for segment in segments
        for word in segment.words
        if word.text.strip()
    )


def clamp_segments(segments: Iterable[Segment], duration_s: float) -> Iterator[Segment]:
    """End segments and words at the end of the audio, in whole hundredths of a second.

    A text that starts after the end gets the time since the previous segment, or else its time.
    """
    last_s, before = math.floor(100 * duration_s + 1e-6) / 100, (0.0, 0.0)
    for one in segments:
        if one.end_s > last_s or any(word.end_s > last_s for word in one.words):
            start_s, end_s = one.start_s, min(one.end_s, last_s)
            if start_s >= last_s:
                start_s = min(before[1], end_s) if before[1] < end_s else before[0]
            words = [
                replace(word, start_s=min(word.start_s, last_s), end_s=min(word.end_s, last_s))
                for word in one.words
            ]
            if words and words[0].start_s >= last_s:  # a cue of these words needs a duration
                words[0] = replace(words[0], start_s=start_s)
            one = replace(one, start_s=start_s, end_s=end_s, words=tuple(words))
        before = one.start_s, one.end_s
        yield one


def limit_segments(segments: Iterable[Segment], duration_s: float) -> tuple[Segment, ...]:
    """End segments at the end of the audio; leave out those that start after it."""
    ends = ((one, min(one.end_s, duration_s)) for one in segments)
    return tuple(replace(one, end_s=end_s) for one, end_s in ends if one.start_s < end_s)


def write_segments_dir(
    folder: Path, entries: Mapping[str, str], segments: Mapping[str, Sequence[Segment]]
) -> None:
    """Write wav.scp, segments, text, utt2spk, spk2utt and, if there are word times, ctm.

    Each recording is a speaker; ids of segments have start and end in hundredths of a second.
    ``entries`` has the wav.scp values of these recordings, and may have more.
    """
    places, texts, speakers = {}, {}, {}
    for name in segments:
        for segment in segments[name]:
            text = " ".join(segment.text.split())
            start_s, end_s = round(segment.start_s, 2), round(segment.end_s, 2)
            if not text or end_s <= start_s:
                continue
            key = f"{name}_{round(start_s * 100):07d}_{round(end_s * 100):07d}"
            places[key] = f"{name} {start_s:.2f} {end_s:.2f}"
            texts[key], speakers[key] = text, name
    recordings = {name: entries[name] for name in segments}
    tables = (recordings, places, texts, speakers, make_spk2utt(speakers))
    words = "".join(ctm_lines(name, segments[name]) for name in sorted(segments))
    put_segments_dir(folder, dict(zip(TABLES, tables, strict=True)), words)


def put_segments_dir(folder: Path, tables: Mapping[str, Mapping[str, str]], ctm: str) -> None:
    """Write the ``TABLES`` of a directory, or remove its files if there are no recordings."""
    if not tables["wav.scp"]:
        for name in (*TABLES, CTM):
            (folder / name).unlink(missing_ok=True)
        return
    for name, table in tables.items():
        write_table(folder / name, table)
    if ctm:
        write_atomically(folder / CTM, ctm)
    else:
        (folder / CTM).unlink(missing_ok=True)
