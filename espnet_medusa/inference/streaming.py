"""ESPnet's ``Speech2TextStreaming`` for Whispers: the call of ESPnet's, over live transcription."""

from pathlib import Path
from typing import Any

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.decoding import Result, Speech
from espnet_medusa.inference.live.live_words import LiveWord
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.espnet_compat import Hypothesis

# Options of ESPnet's search over blocks of an encoder, with their defaults.
OF_BLOCKS = {
    "disable_repetition_detection": False,
    "decoder_text_length_limit": 0,
    "encoded_feat_length_limit": 0,
}


class Speech2TextStreaming:
    """Pieces of audio in, an n-best list of one text out: all words so far.

    The last words may change in later calls; those of ``live.update`` that are confirmed do not.

    Args:
        asr_train_config: The experiment's ``config.yaml``; None: the one next to the weights.
        asr_model_file: The weights.
        live: Options of ``Speech2Text.live``; by default every call decodes.
        options: Those of ``Speech2Text``. ESPnet's options of blocks must have their defaults.

    Raises:
        InputError: The model is not a Whisper with Whisper's tokens, or an option is not usable.
    """

    def __init__(
        self,
        asr_train_config: Path | str | None = None,
        asr_model_file: Path | str | None = None,
        live: dict[str, Any] | None = None,
        **options: Any,
    ):
        for name, default in OF_BLOCKS.items():
            if (value := options.pop(name, default)) != default:
                raise InputError(f"{name}: {value}; not used live; allowed: {default}")
        self.speech2text = Speech2Text(asr_train_config, asr_model_file, **options)
        self.asr_model = self.speech2text.asr_model
        self.asr_train_args = self.speech2text.asr_train_args
        self.options = live or {}
        self.reset()

    def reset(self) -> None:
        """Begin another stream."""
        self.live = self.speech2text.live(**self.options)
        self.confirmed: list[LiveWord] = []
        self.tentative: tuple[LiveWord, ...] = ()

    def __call__(self, speech: Speech, is_final: bool = True) -> list[Result]:
        """Return the n-best list after (samples,) in [-1, 1] at 16 kHz; empty before any word.

        Its hypothesis has the score of the last decoded audio. ``is_final``: the stream ends, and
        the next call begins another one.
        """
        self.live.add(self.speech2text.model.audio.read(speech).cpu().numpy())
        update = self.live.finish() if is_final else self.live.update()
        if update is not None:
            self.confirmed += update.confirmed
            self.tentative = update.tentative
        results = self._results([*self.confirmed, *self.tentative], is_final)
        if is_final:
            self.reset()
        return results

    def _results(self, words: list[LiveWord], is_final: bool) -> list[Result]:
        if not words and not is_final:
            return []
        ids = [token for word in words for token in word.tokens]
        score = 0.0 if self.live.last is None else self.live.last.log_probability
        network = self.asr_model
        hypothesis = Hypothesis(torch.tensor([network.sos, *ids, network.eos]), score, {})
        pieces = self.speech2text.converter.ids2tokens(ids)
        return [("".join(word.text for word in words).strip(), pieces, ids, hypothesis)]
