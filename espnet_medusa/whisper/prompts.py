"""Which language an utterance is in: one decoder call behind the start token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from espnet_medusa.tree.token_tree import ROOT
from espnet_medusa.tree.tree_decoder import TreeDecoder
from espnet_medusa.whisper.tokens import DETECT, WhisperTokens


def detect_languages(
    decoder: TreeDecoder,
    memory: torch.Tensor,
    memory_lengths: torch.Tensor,
    start: int,
    languages: Mapping[str, int],
) -> list[str]:
    """The most probable language token of each utterance (Radford et al., arXiv 2212.04356, 2.3).

    Args:
        decoder: Of a multilingual Whisper.
        memory: (U, S, D) encoder output.
        memory_lengths: (U,) frames.
        start: Start token.
        languages: Code to token.

    Returns:
        U codes.
    """
    num_utterances = len(memory)
    state = decoder.start(memory, memory_lengths, with_heads=False)
    outputs = decoder.extend(state, [[start]] * num_utterances, [[ROOT]] * num_utterances)
    codes = [*languages]
    scores = decoder.logits(outputs.hidden)[:, [languages[code] for code in codes]]
    return [codes[best] for best in scores.argmax(dim=-1).tolist()]


@dataclass(frozen=True)
class WhisperPrompts:
    """Prompts of a Whisper.

    Attributes:
        tokens: Its special tokens.
        language: Code, ``detect``, or None with models of English alone.
        task: ``transcribe`` or ``translate``.

    Raises:
        InputError: The model does not have the language or the task.
    """

    tokens: WhisperTokens
    language: str | None
    task: str

    def __post_init__(self):
        self.tokens.prompt(self.known(self.language), self.task)

    def make(
        self,
        decoder: TreeDecoder,
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        languages: Sequence[str | None],
    ) -> list[list[int]]:
        """U prompts of P tokens; arguments and errors as ``choose_languages``'s."""
        chosen = self.choose_languages(decoder, memory, memory_lengths, languages)
        return [self.tokens.prompt(code, self.task) for code in chosen]

    def choose_languages(
        self,
        decoder: TreeDecoder,
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        languages: Sequence[str | None],
    ) -> list[str | None]:
        """U codes; None with models of English alone.

        Args:
            decoder: Detects.
            memory: (U, S, D) encoder output.
            memory_lengths: (U,) frames.
            languages: U codes or ``detect``; None: the search's own.

        Raises:
            InputError: The model does not have a language.
        """
        chosen = [language or self.language for language in languages]
        rows = [row for row, language in enumerate(chosen) if language == DETECT]
        if rows and self.tokens.languages:
            found = detect_languages(
                decoder,
                memory[rows],
                memory_lengths[rows],
                self.tokens.start,
                self.tokens.languages,
            )
            for row, language in zip(rows, found, strict=True):
                chosen[row] = language
        return [self.known(code) for code in chosen]

    def known(self, language: str | None) -> str | None:
        """A code in place of ``detect``, which models of English alone need not do."""
        if language != DETECT:
            return language
        return next(iter(self.tokens.languages), None)
