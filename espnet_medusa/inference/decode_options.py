"""All decode options of ours beside ESPnet's own."""

from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.search.options import SearchOptions


@dataclass(frozen=True)
class DecodeOptions(SearchOptions):
    """The search's options, another model that drafts, the encoder, and Whisper's prompt."""

    # experiment (folder or config.yaml), or as whisper_model
    draft_model: str | Path | None = None
    # the experiment's weights; None: what training leaves
    draft_model_file: str | Path | None = None
    # of Whisper's encoder, as decoder_precision, which it is where it is not given
    encoder_precision: str | None = None
    language: str | None = None  # a code or detect; None: as trained
    task: str | None = None  # transcribe or translate; None: as trained

    @property
    def encoding(self) -> str | None:
        """What the encoder computes in; None: the model's own."""
        return self.encoder_precision or self.decoder_precision

    @property
    def draft_encoding(self) -> str | None:
        """What a draft model's encoder computes in; None: its own."""
        return self.draft_precision or self.encoding
