"""Smaller byte-pair vocabularies: the first tokens of a larger one.

Byte-pair encoding (Sennrich et al., arXiv 1508.07909) numbers tokens in the order of its merges. So
the first N tokens are a vocabulary of N - 256 merges, and every other token is a sequence of them.
"""

import re
from collections.abc import Sequence
from functools import cached_property

from espnet_medusa.data.errors import InputError

BYTES = 256
SPECIAL = re.compile(r"<\|.*\|>")


def byte_alphabet() -> dict[str, int]:
    """Map the characters of byte-level BPE to bytes; printable ones map to themselves."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # slow to import

    return {sign: byte for byte, sign in bytes_to_unicode().items()}


class BytePairUnits:
    """The first tokens of a byte-level vocabulary, and every token as a sequence of them.

    Raise InputError for another kind of vocabulary, or a ``size`` below 256 or above its tokens.

    Args:
        tokens: V names by id: the 256 bytes, then merges in their order; special tokens in ``<|``
            and ``|>``.
        size: N, number of units; 256: bytes.
    """

    def __init__(self, tokens: Sequence[str], size: int):
        alphabet = byte_alphabet()
        self.tokens = [
            bytes(alphabet[sign] for sign in token)
            if set(token) <= alphabet.keys() and not SPECIAL.fullmatch(token)
            else None
            for token in tokens
        ]
        ordinary = sum(token is not None for token in self.tokens)
        if len({token for token in self.tokens[:BYTES] if token and len(token) == 1}) < BYTES:
            raise InputError(
                f"{size} byte-pair units of a vocabulary that does not begin with the {BYTES} "
                "bytes; allowed: Whisper's tokens"
            )
        if not BYTES <= size <= ordinary or None in self.tokens[:size]:
            raise InputError(f"{size} byte-pair units; allowed: {BYTES} (bytes) to {ordinary}")
        self.contents: list[bytes] = self.tokens[:size]  # the bytes of each unit
        self._known: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.contents)

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        return {content: number for number, content in enumerate(self.contents)}

    def spell(self, tokens: Sequence[int]) -> list[int]:
        """Convert tokens of the whole vocabulary to units; special tokens are omitted."""
        for token in tokens:
            if token not in self._known:
                self._known[token] = self._merge(self.tokens[token] or b"")
        return [unit for token in tokens for unit in self._known[token]]

    def _merge(self, content: bytes) -> tuple[int, ...]:
        """Merge bytes into units; of the possible merges, the lowest id is applied first."""
        parts = [content[place : place + 1] for place in range(len(content))]
        while len(parts) > 1:
            pairs = (left + right for left, right in zip(parts, parts[1:], strict=False))
            ranks = [self._ranks.get(pair, len(self)) for pair in pairs]
            first = min(ranks)
            if first == len(self):
                break
            place = ranks.index(first)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return tuple(self._ranks[part] for part in parts)
