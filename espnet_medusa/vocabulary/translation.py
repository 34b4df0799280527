"""Tokens of a vocabulary by how they begin."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.vocabulary.mapping import VocabularyMap, map_vocabularies
from espnet_medusa.vocabulary.vocabulary import Vocabulary


class ByteOrder:
    """Tokens of a vocabulary by how they begin.

    Args:
        vocabulary: Any.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.ids = vocabulary.ids
        self.texts = sorted(self.ids)
        self.longest = max(map(len, self.texts), default=0)

    def longer(self, ahead: bytes) -> list[int]:
        """Tokens that begin with these bytes, of which there is one, and have more."""
        first, last = self._longer(ahead)
        return [self.ids[text] for text in self.texts[first:last]]

    def goes_on(self, ahead: bytes) -> bool:
        """Whether there are any."""
        first, last = self._longer(ahead)
        return first < last

    def _longer(self, ahead: bytes) -> tuple[int, int]:
        first = bisect_right(self.texts, ahead)
        return first, bisect_left(self.texts, ahead + b"\xff" * (self.longest + 1))

    def agreeing(self, ahead: bytes) -> list[int]:
        """Those, and tokens that these bytes begin with."""
        beginnings = (ahead[:size] for size in range(1, len(ahead) + 1))
        return [self.ids[text] for text in beginnings if text in self.ids] + self.longer(ahead)


@dataclass(frozen=True)
class Translation:
    """Between the vocabularies of a main model and of its draft model.

    Attributes:
        forth: From the main model to the draft model.
        back: From the draft model to the main model.
        size: V, columns of the main model's logits, where they are more than its vocabulary has
            tokens.
    """

    forth: VocabularyMap
    back: VocabularyMap
    size: int | None = None

    @staticmethod
    def between(main: Vocabulary, draft: Vocabulary, size: int | None = None) -> Translation:
        """Map both ways.

        Raises:
            InputError: The main model has fewer columns than its vocabulary has tokens.
        """
        if size is not None and size < len(main):
            raise InputError(
                f"the model writes {size} tokens, its tokenizer knows {len(main)}; give the token "
                "list and the tokenizer that it was trained with"
            )
        return Translation(map_vocabularies(main, draft), map_vocabularies(draft, main), size)

    @property
    def vocab_size(self) -> int:
        """Columns of the main model's logits."""
        return len(self.forth.source) if self.size is None else self.size

    @cached_property
    def main_order(self) -> ByteOrder:
        """The main model's tokens by their beginnings."""
        return ByteOrder(self.forth.source)

    @cached_property
    def draft_order(self) -> ByteOrder:
        """The draft model's."""
        return ByteOrder(self.back.source)

    @cached_property
    def feed(self) -> list[int]:
        """Of each token of the main model the draft model's, -1 for none."""
        missing = max(0, self.vocab_size - len(self.forth.source))
        return self.forth.exact.tolist() + [-1] * missing

    @cached_property
    def columns(self) -> torch.Tensor:
        """(V,) of each token of the main model the one that stands for it in logits, or -1."""
        columns, end = [-1] * self.vocab_size, self.back.source.end
        for token, found in enumerate(self.back.exact.tolist()):
            # Where start and end are one symbol, it is the end that follows a text.
            if 0 <= found < len(columns) and (columns[found] != end or end is None):
                columns[found] = token
        return torch.tensor(columns)
