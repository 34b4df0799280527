"""Many searches over the same models in one process: equal weights are in memory once."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from espnet_medusa.inference.audio_batch import SpeechEncoder, encode_alike
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.model.espnet_transformer import searchable
from espnet_medusa.tree.tree_decoder import TreeDecoder


@dataclass
class SharedWeights:
    """Opens searches.

    Attributes:
        encoders: Those that were opened, with what they compute in, none twice.
        decoders: As searches call them, by config, weights and precisions.
    """

    encoders: list[tuple[str | None, SpeechEncoder]] = field(default_factory=list)
    decoders: dict[tuple, TreeDecoder] = field(default_factory=dict)

    def open(self, config: Path, weights: Path, options: dict[str, Any]) -> Speech2Text:
        """A search as ``Speech2Text`` makes it; for decoding alone.

        Args:
            config: The experiment's ``config.yaml``.
            weights: Its weights.
            options: ESPnet's and ours.

        Raises:
            InputError: As ``Speech2Text``.
        """
        speech2text = Speech2Text(config, weights, **options)
        model = speech2text.model
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
            numbers = options.get("dtype"), options.get("decoder_precision")
            key = config.resolve(), weights.resolve(), *numbers
            search.decoder = self.decoders.setdefault(key, search.decoder)
            # Encoders stay as they are: those to come are compared with them.
            searchable(speech2text.asr_model.decoder).release()
        return speech2text

    def _known(self, encoder: SpeechEncoder, precision: str | None) -> SpeechEncoder:
        """The same encoder that was opened before, or this one."""
        for its_precision, known in self.encoders:
            alike = its_precision == precision and encode_alike(known, encoder)
            if known is encoder or alike:
                return known
        self.encoders.append((precision, encoder))
        return encoder
