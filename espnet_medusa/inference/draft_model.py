"""A second, smaller model that drafts: what searches ask of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from espnet_medusa.draft.model import DraftModelProposer
from espnet_medusa.inference.audio_batch import AudioBatch, SpeechEncoder
from espnet_medusa.model.espnet_transformer import ESPnetTransformerDecoder
from espnet_medusa.model.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.tree.proposer import DraftInput
from espnet_medusa.vocabulary.translation import Translation
from espnet_medusa.vocabulary.vocabulary import Vocabulary
from espnet_medusa.whisper.tokens import TRANSCRIBE, TRANSLATE, WhisperTokens

FALLBACK = "en"  # a draft need not know the language, only be right now and then


@dataclass(frozen=True)
class DraftModel:
    """What drafting asks of a model.

    Attributes:
        name: As given.
        encoder: Its encoder.
        decoder: Its trained decoder.
        tokens: V names, by id.
        start, end: Ids of the symbols around a text.
        vocabulary: Opens what its tokens stand for.
        whisper: Its special tokens where it knows Whisper's prompts, else None.
        sample_rate_hz: That it expects.
        window_s: Longest audio; None without limit.
    """

    name: str
    encoder: SpeechEncoder
    decoder: MultiTokenDecoder | ESPnetTransformerDecoder
    tokens: list[str]
    start: int
    end: int
    vocabulary: Callable[[], Vocabulary]
    whisper: WhisperTokens | None
    sample_rate_hz: int
    window_s: float | None

    def proposer(
        self,
        tokens: Sequence[str],
        eos: int,
        vocabulary: Callable[[], Vocabulary],
        precision: str | None,
    ) -> DraftModelProposer:
        """It as searches ask it; of another vocabulary, with a translation.

        Args:
            tokens: V names of the main model's tokens, by id.
            eos: Its end symbol.
            vocabulary: Opens what they stand for.
            precision: As ``decoder_precision``.

        Raises:
            InputError: What tokens stand for is not known.
        """
        translation = None
        if self.tokens != [*tokens] or self.end != eos:
            translation = Translation.between(vocabulary(), self.vocabulary(), len(tokens))
        return DraftModelProposer(build_runtime(self.decoder, precision), eos, translation)

    def read(
        self, audio: AudioBatch, prompts: Sequence[Sequence[int]], whisper: WhisperTokens | None
    ) -> list[DraftInput]:
        """What it drafts U utterances from.

        Args:
            audio: U utterances.
            prompts: Of the main model, U.
            whisper: The main model's special tokens, if they are Whisper's.
        """
        memory, frames = audio.encode(self.encoder)
        return [
            DraftInput(rows[:length], self._prompt(prompt, whisper))
            for rows, length, prompt in zip(memory, frames.tolist(), prompts, strict=True)
        ]

    def _prompt(self, prompt: Sequence[int], whisper: WhisperTokens | None) -> list[int]:
        """Its own prompt for language and task of the main model's; that one of the same tokens."""
        if self.whisper is None:
            return [self.start]
        if self.whisper == whisper:
            return [*prompt]
        timed = whisper is not None and whisper.no_timestamps not in prompt
        if not self.whisper.languages:
            return self.whisper.prompt(None, timestamps=timed)
        language, task = FALLBACK, TRANSCRIBE
        if whisper is not None:
            names = {number: code for code, number in whisper.languages.items()}
            spoken = [names[token] for token in prompt if token in names]
            language = next((code for code in spoken if code in self.whisper.languages), language)
            task = TRANSLATE if whisper.translate in prompt else task
        return self.whisper.prompt(language, task, timed)

    def release(self) -> None:
        """Give back the memory of weights that proposer and encoder have laid out anew."""
        self.decoder.release()
        self.encoder.release()
