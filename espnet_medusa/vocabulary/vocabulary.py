"""One view of every tokenizer: what bytes each token writes, and which tokens write given bytes.

A space belongs to the word behind it: Whisper's leading space and sentencepiece's word boundary
are the same byte.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

UNKNOWN = "<unk>"
# The same token under two names.
_ALIASES = {"nocaptions": "nospeech"}
# What stays of bytes that are no UTF-8 after decoding with surrogateescape.
_INVALID = re.compile("([\udc80-\udcff]+)")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model.

    Attributes:
        contents: Per id the bytes that it writes; None where it writes none.
        names: Per id the name of a special token; None for ordinary and unused ones.
        spell: Valid UTF-8 within a text, to ids; None stands for what no token writes.
        spell_bytes: The same for bytes that are no UTF-8.
        leading_space: Whether a text's first word has a space before it; None: either.
        start, end: Ids of the special tokens around a text, if any.
    """

    contents: tuple[bytes | None, ...] = field(repr=False)
    names: tuple[str | None, ...] = field(repr=False)
    spell: Callable[[str], list[int | None]] = field(repr=False)
    spell_bytes: Callable[[bytes], list[int | None]] = field(repr=False)
    leading_space: bool | None = None
    start: int | None = None
    end: int | None = None

    def __len__(self) -> int:
        return len(self.contents)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """Bytes to the token that writes them; of several the last."""
        return {text: number for number, text in enumerate(self.contents) if text is not None}

    @cached_property
    def special(self) -> dict[str, int]:
        """Bare names of special tokens to their ids."""
        found: dict[str, int] = {}
        for number, name in enumerate(self.names):
            if name is not None:
                found.setdefault(bare(name), number)
        return found

    @property
    def unknown(self) -> int | None:
        """The token for what no other token writes."""
        return self.special.get(bare(UNKNOWN))

    def write(self, tokens: Sequence[int]) -> bytes:
        """The bytes of tokens; special ones write none."""
        return b"".join(self.contents[token] or b"" for token in tokens)

    def encode(self, text: bytes | str) -> list[int | None]:
        """Tokens of a piece of text, as they come within a longer one.

        Args:
            text: Any bytes; names of special tokens are text here.

        Returns:
            Ids; None stands for something that no token writes.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        found: list[int | None] = []
        for number, part in enumerate(_INVALID.split(text)):
            if number % 2:
                found += self.spell_bytes(part.encode("utf-8", "surrogateescape"))
            elif part:
                found += self.spell(part)
        return found


def bare(name: str) -> str:
    """A special token's name without brackets: `<|en|>` and `<en>` are the same."""
    inner = name.removeprefix("<").removesuffix(">").removeprefix("|").removesuffix("|")
    return _ALIASES.get(inner, inner)
