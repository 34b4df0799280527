"""Transcripts, and their formats: openai-whisper's, identical to the byte, and NIST's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field
from typing import Any

from espnet_medusa.inference.journal import Failed, Outcome
from espnet_medusa.longform.segment import CHANNEL, CTM, Segment, ctm_lines
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.transcription.recordings import Recording


@dataclass(frozen=True)
class Transcript:
    recording: Recording  # the audio file
    text: str | None = None  # transcribed text; None: the recording failed
    language: str | None = None  # code; None: the model has no languages, or no speech was found
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    error: str | None = None  # one line with the reason of a failure; None: there is a text
    # Segments with times; None: the recording was decoded as a whole.
    segments: tuple[Segment, ...] | None = None
    trace: list[dict[str, Any]] | None = None  # as ``Decoding.trace``

    @classmethod
    def of(cls, recording: Recording, outcome: Outcome) -> Transcript:
        """Make the transcript of a recording from its decoding."""
        if isinstance(outcome, Failed):
            return cls(recording, error=outcome.reason)
        text = outcome.nbest[0].text or ""
        if outcome.segments is None:
            text = " ".join(text.split())
        rest = {"segments": outcome.segments, "trace": outcome.trace}
        return cls(recording, text, outcome.language, outcome.statistics, **rest)

    @property
    def line(self) -> str:
        return " ".join((self.text or "").split())

    @property
    def has_words(self) -> bool:
        return any(segment.words for segment in self.segments or ())


def as_text(transcript: Transcript) -> str:
    """Return the text on one line, or each segment on a line."""
    if transcript.segments is None:
        return f"{transcript.line}\n"
    return "".join(f"{segment.text.strip()}\n" for segment in transcript.segments)


def as_json(transcript: Transcript) -> str:
    """Return openai-whisper's JSON or, without segments, file, text, language and duration."""
    if transcript.segments is None:
        fields = {
            "file": str(transcript.recording.path),
            "text": transcript.line,
            "language": transcript.language,
            "duration": round(transcript.statistics.audio_seconds, 3),
        }
        return json.dumps(fields, ensure_ascii=False, indent=2) + "\n"
    timed = transcript.has_words
    rows = [_fields(number, one, timed) for number, one in enumerate(transcript.segments)]
    return json.dumps({"text": transcript.text, "segments": rows, "language": transcript.language})


def _fields(number: int, segment: Segment, with_words: bool) -> dict:
    fields = {
        "id": number,
        "seek": segment.seek,
        "start": segment.start_s,
        "end": segment.end_s,
        "text": segment.text,
        "tokens": [*segment.tokens],
        "temperature": segment.temperature,
        "avg_logprob": segment.average_log_probability,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_probability,
    }
    # openai-whisper writes an empty list of words for an empty segment, even without word times.
    if with_words or not segment.tokens:
        names = ("word", "start", "end", "probability")
        fields["words"] = [dict(zip(names, astuple(word), strict=True)) for word in segment.words]
    return fields


def as_srt(transcript: Transcript) -> str:
    return "".join(
        f"{number}\n{clock(start_s, ',', True)} --> {clock(end_s, ',', True)}\n{text}\n\n"
        for number, (start_s, end_s, text) in enumerate(_subtitles(transcript), start=1)
    )


def as_vtt(transcript: Transcript) -> str:
    return "WEBVTT\n\n" + "".join(
        f"{clock(start_s, '.')} --> {clock(end_s, '.')}\n{text}\n\n"
        for start_s, end_s, text in _subtitles(transcript)
    )


def _subtitles(transcript: Transcript) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and text; times are those of the first and last word, if there are any."""
    for segment in transcript.segments or ():
        if not transcript.has_words:
            text = segment.text.strip().replace("-->", "->")
            yield segment.start_s, segment.end_s, text
        elif segment.words:
            first, *rest = segment.words
            text = first.text.strip() + "".join(word.text for word in rest)
            yield first.start_s, segment.words[-1].end_s, text


def clock(seconds: float, marker: str, with_hours: bool = False) -> str:
    """Format hours, minutes, seconds, the decimal marker and milliseconds."""
    total_ms = round(seconds * 1000)
    minutes, rest_ms = divmod(total_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    before = f"{hours:02d}:" if with_hours or hours > 0 else ""
    return f"{before}{minutes:02d}:{rest_ms // 1000:02d}{marker}{rest_ms % 1000:03d}"


def as_tsv(transcript: Transcript) -> str:
    """Return a table of segments, with times in milliseconds."""
    rows = [
        f"{round(1000 * segment.start_s)}\t{round(1000 * segment.end_s)}\t"
        + segment.text.strip().replace("\t", " ")
        for segment in transcript.segments or ()
    ]
    return "\n".join(["start\tend\ttext", *rows]) + "\n"


def as_stm(transcript: Transcript) -> str:
    """Return NIST's stm: recording, channel, speaker, start, end and text of each segment."""
    name = transcript.recording.id
    return "".join(
        f"{name} {CHANNEL} {name} {segment.start_s:.2f} {segment.end_s:.2f} "
        f"{' '.join(segment.text.split())}\n"
        for segment in transcript.segments or ()
        if segment.text
    )


FORMATS: dict[str, Callable[[Transcript], str]] = {
    "txt": as_text,
    "vtt": as_vtt,
    "srt": as_srt,
    "tsv": as_tsv,
    "json": as_json,
    "stm": as_stm,
    CTM: lambda transcript: ctm_lines(transcript.recording.id, transcript.segments or ()),
}
OPENAI = ("txt", "vtt", "srt", "tsv", "json")  # what openai-whisper writes for "all"
UNTIMED = ("txt", "json")  # formats that can be written without times
