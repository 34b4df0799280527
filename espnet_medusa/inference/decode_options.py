"""All decode options of ours beside ESPnet's own."""

from dataclasses import dataclass

from espnet_medusa.search.build import SearchOptions


@dataclass(frozen=True)
class DecodeOptions(SearchOptions):
    """The search's options, another model that drafts, and Whisper's prompt."""

    draft_model: str | None = None  # experiment (folder or config.yaml), or as whisper_model
    draft_model_file: str | None = None  # the experiment's weights; None: what training leaves
    language: str | None = None  # a code or detect; None: as trained
    task: str | None = None  # transcribe or translate; None: as trained
