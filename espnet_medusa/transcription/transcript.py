"""What one audio file gave, and how it is written."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.transcription.recordings import Recording


@dataclass(frozen=True)
class Transcript:
    """Of one recording.

    Attributes:
        recording: Which one.
        text: What was said; None where there is none.
        language: Code, given or detected; None where the model has no languages.
        statistics: What it cost.
        error: One line on why there is no text; None: there is.
    """

    recording: Recording
    text: str | None = None
    language: str | None = None
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    error: str | None = None


def as_text(transcript: Transcript) -> str:
    """The text on a line of its own."""
    return f"{transcript.text}\n"


def as_json(transcript: Transcript) -> str:
    """The names of openai-whisper's, and the file and its seconds."""
    fields = {
        "file": str(transcript.recording.path),
        "text": transcript.text,
        "language": transcript.language,
        "duration": round(transcript.statistics.audio_seconds, 3),
    }
    return json.dumps(fields, ensure_ascii=False, indent=2) + "\n"


FORMATS: dict[str, Callable[[Transcript], str]] = {"txt": as_text, "json": as_json}


def output_path(folder: Path, recording: Recording, output_format: str) -> Path:
    """Where a recording's result goes."""
    return folder / f"{recording.name}.{output_format}"
