"""Whisper's transcripts with timestamps: from tokens to text and words, and back."""

import string
from collections.abc import Callable, Sequence
from typing import Any

from espnet_medusa.networks.whisper.tokens import WhisperTokens

UNSPACED = frozenset(["zh", "ja", "th", "lo", "my", "yue"])  # languages without word separators
BROKEN = "�"  # the replacement character, from incomplete UTF-8

WordTokens = tuple[str, list[int]]


class TranscriptText:
    """Convert transcripts with timestamps between tokens and text."""

    def __init__(self, tokenizer: Any, tokens: WhisperTokens):
        self.tokenizer, self.tokens = tokenizer, tokens

    def encode(self, text: str) -> list[int]:
        """Tokenize a text that precedes a transcript."""
        return self.tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens without timestamps."""
        untimed = [token for token in tokens if token not in self.tokens.times]
        return self.tokenizer.decode(untimed, clean_up_tokenization_spaces=False)

    def text_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens without special tokens and timestamps."""
        return [token for token in tokens if token not in self.tokens.symbols]


def split_words(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str], end: int, language: str | None
) -> list[WordTokens]:
    """Group tokens into words, as openai-whisper does; the end symbol is a word."""
    characters = split_characters(tokens, decode)
    return characters if language in UNSPACED else _join_at_spaces(characters, end)


def split_characters(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[WordTokens]:
    """Group tokens into the shortest runs that decode to whole characters."""
    whole, runs, current, place = decode(tokens), [], [], 0
    for token in tokens:
        current.append(token)
        text = decode(current)
        # A replacement character that the whole text has here, too, is not an incomplete character.
        if BROKEN not in text or whole[place + text.index(BROKEN)] == BROKEN:
            runs.append((text, current))
            current = []
            place += len(text)
    return runs


def _join_at_spaces(characters: Sequence[WordTokens], end: int) -> list[WordTokens]:
    words: list[WordTokens] = []
    for text, tokens in characters:
        is_symbol = tokens[0] == end or text.strip() in string.punctuation
        if is_symbol or text.startswith(" ") or not words:
            words.append((text, [*tokens]))
        else:
            last_text, last_tokens = words[-1]
            words[-1] = last_text + text, last_tokens + tokens
    return words
