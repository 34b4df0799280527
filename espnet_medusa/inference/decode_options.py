"""All decode options of ours beside ESPnet's own."""

from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.options import option
from espnet_medusa.search.options import SearchOptions


@dataclass(frozen=True)
class DecodeOptions(SearchOptions):
    """The search's options, another model that drafts, the encoder, and Whisper's prompt."""

    draft_model: str | Path | None = option(
        None,
        "ESPnet experiment (folder or config.yaml) that drafts, or a Whisper: hub name, folder, "
        ".pt file",
    )
    draft_model_file: str | Path | None = option(
        None, "weights of that experiment; none: those in its folder"
    )
    encoder_precision: str | None = option(
        None, "precision of Whisper's encoder, as decoder_precision; none: decoder_precision"
    )
    language: str | None = option(
        None, "language code for Whisper's prompt, or detect; none: that of training"
    )
    task: str | None = option(
        None, "task for Whisper's prompt: transcribe or translate; none: that of training"
    )

    @property
    def encoding(self) -> str | None:
        """What the encoder computes in; None: the model's own."""
        return self.encoder_precision or self.decoder_precision

    @property
    def draft_encoding(self) -> str | None:
        """What a draft model's encoder computes in; None: its own."""
        return self.draft_precision or self.encoding
