"""What one audio file gave, and how it is written."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.longform.segment import Segment
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.transcription.recordings import Recording


@dataclass(frozen=True)
class Transcript:
    """Of one recording.

    Attributes:
        recording: Which one.
        text: What was said; None where there is none.
        language: Code, given or detected; None where the model has no languages, or
            where nobody speaks.
        statistics: What it cost.
        error: One line on why there is no text; None: there is.
        segments: With their times; None where none were asked for.
    """

    recording: Recording
    text: str | None = None
    language: str | None = None
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    error: str | None = None
    segments: tuple[Segment, ...] | None = None

    @property
    def line(self) -> str:
        """The text on one line."""
        return " ".join((self.text or "").split())

    @property
    def has_words(self) -> bool:
        """Whether there are times of words."""
        return any(segment.words for segment in self.segments or ())


Writer = Callable[[Transcript], str]


def output_path(folder: Path, recording: Recording, output_format: str) -> Path:
    """Where a recording's result goes."""
    return folder / f"{recording.name}.{output_format}"
