"""Times of the words of a window: by the decoder's attention, or by the model's CTC branch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from espnet_medusa.data.encoder_rows import repeat_rows
from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.audio_batch import Encoded
from espnet_medusa.inference.decoding_model import DecodingModel, draft_sources
from espnet_medusa.inference.longform.ctc_word_times import align_units, time_words_by_units
from espnet_medusa.inference.longform.long_form_options import ATTENTION, CTC, LongFormOptions
from espnet_medusa.inference.longform.whisper_alignment import align_tokens
from espnet_medusa.inference.longform.word_times import TimedWord, sharpen, time_words
from espnet_medusa.inference.whisper_prompts import WhisperPrompts
from espnet_medusa.networks.unit_ctc import UnitCTC
from espnet_medusa.networks.whisper.transcript import WordTokens
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder

# ``(encoded, frames, words, language) -> words with times``:
#   encoded: (1, S', D) encoder output, and its length or the frames of its rows.
#   frames: S > 0, number of encoder frames of the window's audio, without padding.
#   words: Those of the text, and one for the end symbol.
#   language: Code; None for English-only models.
WordAligner = Callable[[Encoded, int, Sequence[WordTokens], str | None], list[TimedWord]]


@dataclass(frozen=True)
class AttentionAligner:
    """A ``WordAligner`` by cross-attention, in a teacher-forced pass without timestamps."""

    decoder: WhisperMedusaDecoder  # the trained module
    prompts: WhisperPrompts
    frames_per_s: float  # of the encoder output

    def __call__(
        self, encoded: Encoded, frames: int, words: Sequence[WordTokens], language: str | None
    ) -> list[TimedWord]:
        tokens, end = self.prompts.tokens, self.prompts.tokens.end
        prompt = tokens.prompt(language, self.prompts.task)
        text = [token for _, word in words for token in word]
        attention, logits = align_tokens(self.decoder, encoded, [*prompt, *text], frames)
        rows = slice(len(prompt) - 1, -1)
        logits = logits[rows].float()[: len(text) - 1]
        logits[:, end : tokens.times.stop] = -torch.inf  # without symbols and timestamps
        chosen = torch.tensor(text[:-1], device=logits.device)[:, None]
        probabilities = logits.softmax(dim=-1).gather(1, chosen)[:, 0].tolist()
        attention = sharpen(attention)[:, rows]
        return time_words(words, attention, probabilities, self.frames_per_s)


@dataclass(frozen=True)
class CTCAligner:
    """A ``WordAligner`` by forced alignment with a CTC branch, without the decoder."""

    network: torch.nn.Module  # ESPnet's module
    # Encoder output (1, S, D) to the branch's log-probabilities (1, S', labels).
    log_probs: Callable[[torch.Tensor], torch.Tensor]
    frames_per_s: float  # of the encoder output

    @torch.no_grad()
    def __call__(
        self, encoded: Encoded, frames: int, words: Sequence[WordTokens], language: str | None
    ) -> list[TimedWord]:
        (encoder_out,), (lengths,) = encoded
        log_probs = self.log_probs(repeat_rows(encoder_out, lengths)[None, :frames])[0]
        labels = [
            [label for token in tokens for label in self._labels(token)] for _, tokens in words[:-1]
        ]
        used = [self.network.blank_id, *(label for word in labels for label in word)]
        # Align with the columns of the text's labels only: the vocabulary has many others.
        columns, (blank, *units) = np.unique(used, return_inverse=True)
        spans = align_units(log_probs[:, columns.tolist()].double().cpu().numpy(), units, blank)
        duration_s = frames / self.frames_per_s
        sizes, frames_per_s = [*map(len, labels)], len(log_probs) / duration_s
        return time_words_by_units(words[:-1], sizes, spans, frames_per_s, duration_s)

    def _labels(self, token: int) -> list[int]:
        """Return the branch's labels of a token of the decoder; empty if it has none."""
        if isinstance(self.network.ctc, UnitCTC):
            return [unit + 1 for unit in self.network.ctc.units.spell([token])]
        # The blank and one token have the same label.
        return [] if token == self.network.blank_id else [token]


def build_word_aligner(model: DecodingModel, source: str, frames_per_s: float) -> WordAligner:
    """Build the aligner for a ``source`` of word times, one of ``WORD_TIMES``."""
    network = model.asr_model
    if source == ATTENTION:
        return AttentionAligner(network.decoder, model.prompts, frames_per_s)
    return CTCAligner(network, draft_sources(model).ctc, frames_per_s)


def check_word_times(asr_model: torch.nn.Module, options: LongFormOptions) -> None:
    """Refuse word times by CTC for a model without a CTC branch."""
    by_ctc = options.word_timestamps and options.word_times == CTC
    if by_ctc and getattr(asr_model, "ctc", None) is None:
        raise InputError(
            f"word_times: {CTC}; this model has no CTC branch (model_conf.ctc_weight: 0); allowed "
            f"here: {ATTENTION}"
        )
