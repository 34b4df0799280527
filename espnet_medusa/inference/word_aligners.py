"""Who says when a window's words are said: the decoder's attention, or the model's CTC branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.inference.draft_material import DraftedModel, draft_sources
from espnet_medusa.longform.ctc_word_times import time_words_by_units
from espnet_medusa.longform.forced_alignment import align_units
from espnet_medusa.longform.options import ATTENTION, CTC, LongFormOptions
from espnet_medusa.longform.word_times import TimedWord, sharpen, time_words
from espnet_medusa.model.unit_ctc import UnitCTC
from espnet_medusa.model.whisper_alignment import align_tokens
from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.whisper.prompts import WhisperPrompts
from espnet_medusa.whisper.transcript import WordTokens


class WordAligner(Protocol):
    """Finds words in a window."""

    def __call__(
        self, memory: torch.Tensor, frames: int, words: Sequence[WordTokens], language: str | None
    ) -> list[TimedWord]:
        """Words with their times.

        Args:
            memory: (1, S', D) encoder output.
            frames: S, above 0, of memory in which the words are said.
            words: Those of a text, and one more that is the end symbol.
            language: Code; None with models of English alone.
        """


@dataclass(frozen=True)
class AttentionAligner:
    """By attention, in a teacher-forced pass behind a prompt without timestamps.

    Attributes:
        decoder: The trained module.
        whisper: Its prompts.
        frames_per_s: Of memory.
    """

    decoder: WhisperMedusaDecoder
    whisper: WhisperPrompts
    frames_per_s: float

    def __call__(
        self, memory: torch.Tensor, frames: int, words: Sequence[WordTokens], language: str | None
    ) -> list[TimedWord]:
        """As ``WordAligner``'s."""
        tokens, end = self.whisper.tokens, self.whisper.tokens.end
        prompt = tokens.prompt(language, self.whisper.task)
        said = [token for _, own in words for token in own]
        found = align_tokens(self.decoder, memory, [*prompt, *said], frames)
        text = slice(len(prompt) - 1, -1)
        logits = found.logits[text, :end].float()[: len(said) - 1]
        chosen = torch.tensor(said[:-1], device=logits.device)[:, None]
        probabilities = logits.softmax(dim=-1).gather(1, chosen)[:, 0].tolist()
        return time_words(
            words, sharpen(found.attention)[:, text], probabilities, self.frames_per_s
        )


@dataclass(frozen=True)
class CTCAligner:
    """By the frames in which a CTC branch hears the units of the text; the decoder is not asked.

    Attributes:
        log_probs: ``(memory (1, S, D)) -> (1, S', N)`` of the branch.
        spell: Its labels for a token of the decoder; none for what it cannot write.
        blank: Its blank.
        frames_per_s: Of memory.
    """

    log_probs: Callable[[torch.Tensor], torch.Tensor]
    spell: Callable[[int], Sequence[int]]
    blank: int
    frames_per_s: float

    @torch.no_grad()
    def __call__(
        self, memory: torch.Tensor, frames: int, words: Sequence[WordTokens], language: str | None
    ) -> list[TimedWord]:
        """As ``WordAligner``'s."""
        log_probs = self.log_probs(memory[:, :frames])[0]
        labels = [[one for token in own for one in self.spell(token)] for _, own in words[:-1]]
        named = [self.blank, *(one for own in labels for one in own)]
        # Of Whisper's tokens as labels a text has few.
        columns, (blank, *units) = np.unique(named, return_inverse=True)
        spans = align_units(log_probs[:, columns.tolist()].double().cpu().numpy(), units, blank)
        duration_s = frames / self.frames_per_s
        sizes = [*map(len, labels)]
        return time_words_by_units(
            words[:-1], sizes, spans, len(log_probs) / duration_s, duration_s
        )


def build_word_aligner(model: DraftedModel, source: str, frames_per_s: float) -> WordAligner:
    """The one that is asked for.

    Args:
        model: A Whisper, as ``Speech2Text``.
        source: Of ``WORD_TIMES``.
        frames_per_s: Of its encoder's output.
    """
    if source == ATTENTION:
        return AttentionAligner(model.asr_model.decoder, model.whisper, frames_per_s)
    sources, ctc = draft_sources(model), model.asr_model.ctc
    spell = _unit_labels(ctc) if isinstance(ctc, UnitCTC) else _token_labels(sources.blank)
    return CTCAligner(sources.ctc, spell, sources.blank, frames_per_s)


def _unit_labels(ctc: UnitCTC) -> Callable[[int], list[int]]:
    return lambda token: [unit + 1 for unit in ctc.units.spell([token])]


def _token_labels(blank: int) -> Callable[[int], list[int]]:
    """The tokens themselves, but for the one that the blank has taken the place of."""
    return lambda token: [] if token == blank else [token]


def check_word_times(asr_model: torch.nn.Module, options: LongFormOptions) -> None:
    """Refuse words by a CTC branch that the model does not have.

    Raises:
        InputError: Says what is allowed.
    """
    wanted = options.word_timestamps and options.word_times == CTC
    if wanted and getattr(asr_model, "ctc", None) is None:
        raise InputError(
            f"word_times: {CTC}; this model has no CTC branch (model_conf.ctc_weight: 0); allowed "
            f"here: {ATTENTION}"
        )
