"""Whisper's prompt of each utterance: in a given, a detected or the default language."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.inference.experiment import TrainedModel
from espnet_medusa.networks.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.networks.whisper.tokens import (
    DETECT,
    WhisperTokens,
    hugging_face_tokenizer,
    language_code,
    read_whisper_tokens,
)

ENGLISH = "en"


@dataclass(frozen=True)
class WhisperPrompts:
    """Prompts of a Whisper model; raises InputError for an unknown language or task."""

    tokens: WhisperTokens  # its special tokens
    language: str | None  # default: code, ``detect``, or None with English-only models
    task: str  # ``transcribe`` or ``translate``

    def __post_init__(self):
        if self.language is not None:
            object.__setattr__(self, "language", language_code(self.language))
        self.tokens.prompt(self.known(self.language), self.task)

    def make(
        self,
        decoder: TreeDecoder,
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        languages: Sequence[str | None],
        together: int | None = None,
    ) -> list[list[int]]:
        """Return U prompts; raise InputError if a language is unknown.

        Args:
            encoder_out: (U, S, D) encoder output.
            encoder_out_lens: Its lengths (U,), or frames per row (U, S).
            languages: U codes or ``detect``; None: the default.
            together: Most utterances in the decoder at once; None: all.
        """

        def detect(rows: list[int]) -> list[str]:
            encoded = encoder_out[rows], encoder_out_lens[rows]
            found = self.language_probabilities(decoder, *encoded, together)
            return [code for code, _ in self.best_languages(found)]

        chosen = self.choose_languages(languages, detect)
        return [self.tokens.prompt(code, self.task) for code in chosen]

    def choose_languages(
        self, languages: Sequence[str | None], detect: Callable[[list[int]], list[str]]
    ) -> list[str]:
        """Return U language codes.

        ``languages`` are those of ``make``; ``detect`` returns the languages of some rows.
        """
        chosen = [self._code(language) for language in languages]
        rows = [row for row, language in enumerate(chosen) if language == DETECT]
        if rows and self.tokens.languages:
            for row, language in zip(rows, detect(rows), strict=True):
                chosen[row] = language
        return [self.known(code) for code in chosen]

    def _code(self, language: str | None) -> str | None:
        """Return the code or ``detect`` of a language; None: that of the options."""
        return language_code(language) if language else self.language

    def detects(self, language: str | None) -> bool:
        """Return whether the language is detected; None: that of the options."""
        return self._code(language) == DETECT and bool(self.tokens.languages)

    def language_probabilities(
        self,
        decoder: TreeDecoder,
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        together: int | None = None,
    ) -> torch.Tensor:
        """Return probabilities (U, languages) after the start token (arXiv 2212.04356, 2.3).

        Arguments as for ``make``.
        """
        starts = [[self.tokens.start]] * len(encoder_out)
        logits = decoder.logits_after(encoder_out, encoder_out_lens, starts, together)
        return logits[:, [*self.tokens.languages.values()]].float().softmax(dim=-1)

    def best_languages(self, probabilities: torch.Tensor) -> list[tuple[str, float]]:
        """Return the best language of each row (U, languages), and its probability."""
        codes, (best, columns) = [*self.tokens.languages], probabilities.max(dim=-1)
        pairs = zip(columns.tolist(), best.tolist(), strict=True)
        return [(codes[column], probability) for column, probability in pairs]

    def known(self, language: str | None) -> str | None:
        """Return the language; for ``detect`` the model's first one.

        English-only models have the language ``en``, which their prompts do not contain.
        """
        if language == DETECT or (language is None and not self.tokens.languages):
            return next(iter(self.tokens.languages), ENGLISH)
        return language


def find_prompts(
    options: DecodeOptions, trained: TrainedModel, converter: Any
) -> WhisperPrompts | None:
    """Return the prompts of a model that was trained with Whisper's prompts, else None."""
    labels = trained.whisper_labels
    if labels is None or not isinstance(trained.asr_model.decoder, MultiTokenDecoder):
        return None
    tokens = read_whisper_tokens(hugging_face_tokenizer(converter))
    tokens = replace(tokens, start=trained.asr_model.sos)  # that of the checkpoint's configs
    return WhisperPrompts(tokens, options.language or labels.language, options.task or labels.task)
