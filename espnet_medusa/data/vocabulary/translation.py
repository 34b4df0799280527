"""The vocabularies of a main model and of its draft model, mapped both ways."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.vocabulary.mapping import VocabularyMap, map_vocabularies
from espnet_medusa.data.vocabulary.vocabulary import Vocabulary


class PrefixIndex:
    """Tokens of a vocabulary by the bytes that they begin with."""

    def __init__(self, vocabulary: Vocabulary):
        self.ids = vocabulary.ids
        self.texts = sorted(self.ids)
        self.longest = max(map(len, self.texts), default=0)

    def extensions(self, prefix: bytes) -> list[int]:
        """Return the tokens that begin with these bytes and have more."""
        return [self.ids[self.texts[place]] for place in self._extensions(prefix)]

    def has_extensions(self, prefix: bytes) -> bool:
        """Return whether a token begins with these bytes and has more."""
        return len(self._extensions(prefix)) > 0

    def _extensions(self, prefix: bytes) -> range:
        first = bisect_right(self.texts, prefix)
        return range(first, bisect_left(self.texts, prefix + b"\xff" * (self.longest + 1)))

    def compatible(self, prefix: bytes) -> list[int]:
        """Return the tokens that start with these bytes, and those that these bytes start with."""
        beginnings = (prefix[:size] for size in range(1, len(prefix) + 1))
        shorter = [self.ids[text] for text in beginnings if text in self.ids]
        return shorter + self.extensions(prefix)


@dataclass(frozen=True)
class Translation:
    """The vocabularies of a main model and of its draft model, mapped both ways."""

    to_draft: VocabularyMap
    to_main: VocabularyMap
    size: int | None = None  # V, columns of the main model's logits; None: number of its tokens

    @staticmethod
    def between(main: Vocabulary, draft: Vocabulary, size: int | None = None) -> Translation:
        """Map both ways; raise InputError if ``size`` is less than the number of main tokens."""
        if size is not None and size < len(main):
            raise InputError(
                f"the model has {size} output tokens, but its tokenizer has {len(main)}; give the "
                "token list and the tokenizer that it was trained with"
            )
        return Translation(map_vocabularies(main, draft), map_vocabularies(draft, main), size)

    @property
    def vocab_size(self) -> int:
        """V, as in ``size``."""
        return len(self.to_draft.source) if self.size is None else self.size

    @cached_property
    def main_index(self) -> PrefixIndex:
        return PrefixIndex(self.to_draft.source)

    @cached_property
    def draft_index(self) -> PrefixIndex:
        return PrefixIndex(self.to_main.source)

    @cached_property
    def feed(self) -> list[int]:
        """For each token of the main model the equal token of the draft model, or -1."""
        return self.to_draft.exact.tolist() + [-1] * (self.vocab_size - len(self.to_draft.source))

    @cached_property
    def columns(self) -> torch.Tensor:
        """(V,) for each token of the main model its column in the draft's logits, or -1."""
        columns, end = [-1] * self.vocab_size, self.to_main.source.end
        for token, main_token in enumerate(self.to_main.exact.tolist()):
            # If start and end are one main token, it gets the column of the draft's end.
            if 0 <= main_token < len(columns) and (columns[main_token] != end or end is None):
                columns[main_token] = token
        return torch.tensor(columns)
