"""The first tokens of a byte-pair vocabulary, which are a smaller one; any of its texts in them.

Byte-pair encoding (Sennrich et al., arXiv 1508.07909) numbers its merges in the order in which it
applies them. So the first N tokens are what it stops at after N - 256 merges, and all later merges
only join them: no tokenizer needs training, and each token is spelt once and for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from espnet_medusa.errors import InputError

BYTES = 256
SPECIAL = re.compile(r"<\|.*\|>")


def byte_alphabet() -> dict[str, int]:
    """Characters of byte-level BPE to bytes: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    signs = [*map(chr, printable), *(chr(BYTES + number) for number in range(len(others)))]
    return dict(zip(signs, printable + others, strict=True))


class BytePairUnits:
    """The first tokens of a byte-level vocabulary, as units of all of it.

    Args:
        tokens: V names as token lists have them, by id: the 256 bytes, then merges in their order;
            special ones in ``<|`` and ``|>``.
        size: N, of the units; 256: bytes.

    Raises:
        InputError: Another kind of vocabulary, or more units than it has tokens.

    Attributes:
        contents: Per unit the bytes that it writes.
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
        self.contents: list[bytes] = self.tokens[:size]
        self._spelt: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.contents)

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        return {content: number for number, content in enumerate(self.contents)}

    def spell(self, tokens: Iterable[int]) -> list[int]:
        """Units of a text of the whole vocabulary; special tokens have none."""
        return [unit for token in tokens for unit in self._spell(token)]

    def _spell(self, token: int) -> tuple[int, ...]:
        if token not in self._spelt:
            self._spelt[token] = self._merge(self.tokens[token] or b"")
        return self._spelt[token]

    def _merge(self, content: bytes) -> tuple[int, ...]:
        """Join neighbours, the pair of the first merge first, until no merge is left."""
        parts = [content[place : place + 1] for place in range(len(content))]
        while len(parts) > 1:
            pairs = (one + other for one, other in zip(parts, parts[1:], strict=False))
            ranks = [self._ranks.get(pair, len(self)) for pair in pairs]
            first = min(ranks)
            if first == len(self):
                break
            place = ranks.index(first)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return tuple(self._ranks[part] for part in parts)
