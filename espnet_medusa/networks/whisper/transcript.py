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
        return encode_transcript(self.tokenizer, text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens without timestamps."""
        untimed = [token for token in tokens if token not in self.tokens.times]
        return self.tokenizer.decode(untimed, clean_up_tokenization_spaces=False)

    def text_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens without special tokens and timestamps."""
        return [token for token in tokens if token not in self.tokens.symbols]


def encode_transcript(tokenizer: Any, text: str) -> list[int]:
    """Tokenize a text as Whisper writes it, with a space before it; nothing for no text."""
    text = text.strip()
    return tokenizer(f" {text}", add_special_tokens=False)["input_ids"] if text else []


def split_words(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str], end: int, language: str | None
) -> list[WordTokens]:
    """Group tokens into words, as openai-whisper does; the end symbol is a word."""
    # The end symbol does not complete the character before it.
    last = len(tokens)
    while last and tokens[last - 1] == end:
        last -= 1
    characters = split_characters(tokens[:last], decode)
    characters += [(decode([token]), [token]) for token in tokens[last:]]
    return characters if language in UNSPACED else _join_at_spaces(characters, end)


def split_characters(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[WordTokens]:
    """Group tokens into the shortest runs that decode to whole characters.

    All tokens are in a run: the rest of an incomplete character is in the run of its beginning.
    """
    whole, runs, current, place = decode(tokens), [], [], 0
    for count, token in enumerate(tokens, start=1):
        current.append(token)
        # Parts of an incomplete character are one symbol only if they are decoded together.
        text = decode(tokens[:count])[place:] if BROKEN in whole else decode(current)
        if not whole.startswith(text, place):
            continue
        if text or not runs:
            runs.append((text, current))
        else:
            runs[-1][1].extend(current)
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
