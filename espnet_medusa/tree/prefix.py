"""A hypothesis prefix as searches hold it: a place in the token tree, known or still drafted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

UNEVALUATED = -1  # slot of a prefix that no decoder call has seen


@dataclass(eq=False, slots=True)
class Prefix:
    """The path that ends with ``token``; prefixes of one utterance share their ancestors.

    Attributes:
        token: Last token.
        parent: Without that token; None for the whole prompt.
        length: Tokens behind the prompt.
        children: Longer by one token.
        slot: Node of the decoder's token tree, or ``UNEVALUATED``.
        logits: (V,) base logits for the token that follows, once evaluated and until judged.
        head_input: Rows of a decoder call, (R, D), and the one that heads draft from, once
            evaluated.
        memo: What scorers and proposers have worked out for this prefix; dies with it.
        root: The prompt that it begins with, one object for each utterance.
    """

    token: int
    parent: Prefix | None = None
    length: int = 0
    children: dict[int, Prefix] = field(default_factory=dict)
    slot: int = UNEVALUATED
    logits: torch.Tensor | None = None
    head_input: tuple[torch.Tensor, int] | None = None
    memo: dict[str, Any] = field(default_factory=dict)
    root: Prefix = field(init=False, repr=False)

    def __post_init__(self):
        self.root = self if self.parent is None else self.parent.root

    @property
    def evaluated(self) -> bool:
        """Whether the decoder knows what follows."""
        return self.slot != UNEVALUATED

    def child(self, token: int) -> Prefix:
        """The prefix that is longer by ``token``; made when it is not there."""
        found = self.children.get(token)
        if found is None:
            found = self.children[token] = Prefix(token, self, self.length + 1)
        return found

    def ancestors(self) -> Iterator[Prefix]:
        """This prefix and all shorter ones, longest first."""
        prefix: Prefix | None = self
        while prefix is not None:
            yield prefix
            prefix = prefix.parent

    def tokens(self) -> list[int]:
        """Tokens behind the prompt."""
        return [prefix.token for prefix in self.ancestors()][-2::-1]
