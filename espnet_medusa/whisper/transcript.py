"""Tokens of a transcript with timestamps as text, and text as tokens of a prompt."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
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


UNSPACED = frozenset(["zh", "ja", "th", "lo", "my", "yue"])  # languages that part no words
BROKEN = "�"  # what bytes that are no character decode to

WordTokens = tuple[str, list[int]]


def split_words(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str], end: int, language: str | None
) -> list[WordTokens]:
    """Words with their tokens, as openai-whisper's tokenizer splits them.

    Args:
        tokens: Of a text; those from ``end`` on are a word each.
        decode: Tokens to text.
        end: End symbol.
        language: Code; None: English.
    """
    characters = split_characters(tokens, decode)
    return characters if language in UNSPACED else _join_at_spaces(characters, end)


def split_characters(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[WordTokens]:
    """The shortest runs of tokens that are whole characters."""
    whole, found, current, place = decode(tokens), [], [], 0
    for token in tokens:
        current.append(token)
        text = decode(current)
        # A text may hold the sign for broken characters itself.
        if BROKEN not in text or whole[place + text.index(BROKEN)] == BROKEN:
            found.append((text, current))
            current = []
            place += len(text)
    return found


def _join_at_spaces(characters: Sequence[WordTokens], end: int) -> list[WordTokens]:
    words: list[WordTokens] = []
    for text, tokens in characters:
        alone = tokens[0] >= end or text.strip() in string.punctuation
        if alone or text.startswith(" ") or not words:
            words.append((text, [*tokens]))
        else:
            before, known = words[-1]
            words[-1] = before + text, known + tokens
    return words
