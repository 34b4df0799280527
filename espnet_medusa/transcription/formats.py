"""Transcripts, and their formats: openai-whisper's and NIST's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any

from espnet_medusa.data.files.atomic import PATH_ERRORS
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.journal import Failed, Outcome
from espnet_medusa.inference.longform.segment import (
    CHANNEL,
    CTM,
    Segment,
    clamp_segments,
    ctm_lines,
)
from espnet_medusa.transcription.recordings import Recording
from espnet_medusa.transcription.subtitles import (
    AS_SEGMENTS,
    SRT,
    VTT,
    SubtitleOptions,
    as_subtitles,
    one_line,
)


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
        segments = outcome.segments
        if segments is not None and outcome.statistics.audio_seconds:
            segments = tuple(clamp_segments(segments, outcome.statistics.audio_seconds))
        rest = {"segments": segments, "trace": outcome.trace}
        return cls(recording, text, outcome.language, outcome.statistics, **rest)

    def written(self, write: Callable[[], None]) -> Transcript:
        """Call ``write``; return a failed transcript if the path of the result is not usable."""
        try:
            write()
        except OSError as error:
            if error.errno not in PATH_ERRORS:
                raise
            reason = f"{self.recording.path}: {error}; rename it or give another output folder"
            return Transcript(self.recording, error=reason)
        return self

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
    return "".join(f"{one_line(segment.text)}\n" for segment in transcript.segments)


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


def as_cues(name: str, transcript: Transcript, options: SubtitleOptions = AS_SEGMENTS) -> str:
    return as_subtitles(name, transcript.segments or (), transcript.language, options)


def as_tsv(transcript: Transcript) -> str:
    """Return a row with start and end in ms and the text for each segment."""
    rows = [
        (round(1000 * one.start_s), round(1000 * one.end_s), one_line(one.text).replace("\t", " "))
        for one in transcript.segments or ()
    ]
    return "".join(f"{start}\t{end}\t{text}\n" for start, end, text in [TSV_HEADER, *rows])


def as_stm(transcript: Transcript) -> str:
    """Return NIST's stm: recording, channel, speaker, start, end and text of each segment."""
    name = transcript.recording.id
    return "".join(
        f"{name} {CHANNEL} {name} {segment.start_s:.2f} {segment.end_s:.2f} "
        f"{' '.join(segment.text.split())}\n"
        for segment in transcript.segments or ()
        if segment.text
    )


FORMATS: dict[str, Callable[..., str]] = {
    "txt": as_text,
    VTT: partial(as_cues, VTT),
    SRT: partial(as_cues, SRT),
    "tsv": as_tsv,
    "json": as_json,
    "stm": as_stm,
    CTM: lambda transcript: ctm_lines(transcript.recording.id, transcript.segments or ()),
}
TSV_HEADER = ("start", "end", "text")
OPENAI = ("txt", "vtt", "srt", "tsv", "json")  # what openai-whisper writes for "all"
UNTIMED = ("txt", "json")  # formats that can be written without times
