"""Tokens of a transcript with timestamps as text, and text as tokens of a prompt."""

from collections.abc import Sequence
from typing import Any

from espnet_medusa.whisper.tokens import WhisperTokens


class TranscriptText:
    """Whisper's tokenizer where timestamps stand among the tokens.

    Args:
        tokenizer: Of Hugging Face's kind.
        tokens: Its special tokens.
    """

    def __init__(self, tokenizer: Any, tokens: WhisperTokens):
        self.tokenizer, self.tokens = tokenizer, tokens

    def encode(self, text: str) -> list[int]:
        """Tokens of a text that stands before a transcript."""
        encoded = self.tokenizer(" " + text.strip(), add_special_tokens=False)
        return [*encoded["input_ids"]]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, timestamps left out."""
        kept = [token for token in tokens if token < self.tokens.first_time]
        return self.tokenizer.decode(kept, clean_up_tokenization_spaces=False)

    def words_alone(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that are text."""
        return [token for token in tokens if token < self.tokens.end]
