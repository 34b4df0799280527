"""All decode options of ours beside ESPnet's own."""

from dataclasses import dataclass

from espnet_medusa.search.build import SearchOptions


@dataclass(frozen=True)
class DecodeOptions(SearchOptions):
    """The search's options, and Whisper's prompt."""

    language: str | None = None  # a code or detect; None: as trained
    task: str | None = None  # transcribe or translate; None: as trained
