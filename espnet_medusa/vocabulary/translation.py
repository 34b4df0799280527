"""The vocabularies of a main model and of a draft model, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.vocabulary.byte_order import ByteOrder
from espnet_medusa.vocabulary.mapping import VocabularyMap, map_vocabularies
from espnet_medusa.vocabulary.vocabulary import Vocabulary


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
