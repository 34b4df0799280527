"""A common interface of all tokenizers: from tokens to bytes, and from bytes to tokens.

A space belongs to the word that follows. Sentencepiece's word boundary is also a space.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

UNKNOWN = "<unk>"
_ALIASES = {"nocaptions": "nospeech"}  # older name: name
# Bytes that are not UTF-8, after decoding with surrogateescape.
_INVALID = re.compile("([\udc80-\udcff]+)")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model.

    Attributes:
        contents: The bytes of each token by id; None for special and unused tokens.
        names: The name of each special token by id; None for ordinary and unused tokens.
        spell: Tokenizes a part of a text; None for characters that no token contains.
        spell_bytes: The same for bytes that are not UTF-8; None: single-byte tokens.
        leading_space: Whether a text's first word has a space before it; None: either.
        start, end: Ids of the special tokens before and after a text, if any.
    """

    contents: tuple[bytes | None, ...] = field(repr=False)
    names: tuple[str | None, ...] = field(repr=False)
    spell: Callable[[str], list[int | None]] = field(repr=False)
    spell_bytes: Callable[[bytes], list[int | None]] | None = field(default=None, repr=False)
    leading_space: bool | None = None
    start: int | None = None
    end: int | None = None

    def __len__(self) -> int:
        return len(self.contents)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """Bytes to token; the last of several tokens with equal bytes."""
        return {text: number for number, text in enumerate(self.contents) if text is not None}

    @cached_property
    def special(self) -> dict[str, int]:
        """Bare names of special tokens to their ids; the first of several equal names."""
        named = [(bare(name), number) for number, name in enumerate(self.names) if name is not None]
        return dict(reversed(named))

    @property
    def unknown(self) -> int | None:
        """The token for text that no other token contains."""
        return self.special.get(bare(UNKNOWN))

    def write(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of tokens; special ones have none."""
        return b"".join(self.contents[token] or b"" for token in tokens)

    def encode(self, text: bytes | str) -> list[int | None]:
        """Tokenize a part of a text with ``spell``; names of special tokens are text."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        ids: list[int | None] = []
        for number, part in enumerate(_INVALID.split(text)):
            data = part.encode("utf-8", "surrogateescape")
            if not number % 2:
                ids += self.spell(part) if part else []
            elif self.spell_bytes is None:
                ids += [self.ids.get(bytes([byte])) for byte in data]
            else:
                ids += self.spell_bytes(data)
        return ids


def bare(name: str) -> str:
    """Return a special token's name without brackets: `<|en|>` and `<en>` are the same."""
    inner = name.removeprefix("<").removesuffix(">").removeprefix("|").removesuffix("|")
    return _ALIASES.get(inner, inner)
