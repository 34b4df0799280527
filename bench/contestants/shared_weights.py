"""Open many searches over the same models in one process, with each weight in memory once."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder
from espnet_medusa.inference.audio_batch import SpeechEncoder
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.espnet_transformer import searchable


@dataclass
class SharedWeights:
    """Opens ``Speech2Text`` objects that share encoders and decoders."""

    # Opened encoders with their precisions, paddings and windows, each once.
    encoders: list[tuple[tuple, SpeechEncoder]] = field(default_factory=list)
    # Decoder runtimes by config, weights and precisions.
    decoders: dict[tuple, TreeDecoder] = field(default_factory=dict)

    def open(
        self, config: Path, weights: Path, window: str | None = None, **options: Any
    ) -> Speech2Text:
        """Build a ``Speech2Text`` that can only decode.

        Args:
            window: Window of Whisper's encoder, ``whisper`` or ``audio``; None: as trained.
            options: ESPnet's options and decode options.

        Raises:
            InputError: The experiment or an option is unusable.
        """
        speech2text = Speech2Text(config, weights, **options)
        model = speech2text.model
        if window is not None:
            model.encoder.whisper.window = window
        encoder = self._known(model.encoder, model.options.encoding)
        if encoder.whisper is not None:
            speech2text.asr_model.encoder = encoder.whisper
        draft = model.draft_model
        if draft is not None:
            precision = model.options.draft_encoding
            draft = replace(draft, encoder=self._known(draft.encoder, precision))
        speech2text.model = replace(model, encoder=encoder, draft_model=draft)
        search = speech2text.search
        if search is not None:
            precisions = options.get("dtype"), options.get("decoder_precision")
            key = config.resolve(), weights.resolve(), *precisions
            search.decoder = self.decoders.setdefault(key, search.decoder)
            # Encoders keep their weights, which later encoders are compared with.
            searchable(speech2text.asr_model.decoder).release()
        return speech2text

    def _known(self, encoder: SpeechEncoder, precision: str | None) -> SpeechEncoder:
        """Return an equal encoder that was opened before, or this one."""
        key = precision, encoder.merged, encoder.whisper and encoder.whisper.window
        for known_key, known in self.encoders:
            if known is encoder or (known_key == key and known.is_like(encoder)):
                return known
        self.encoders.append((key, encoder))
        return encoder
