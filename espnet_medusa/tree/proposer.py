"""What stands in for the decoder behind prefixes that it has not evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from espnet_medusa.tree.prefix import Prefix


class States(Protocol):
    """What a proposer knows of R prefixes."""

    def select(self, rows: torch.Tensor) -> Self:
        """States of these rows, in this order; a row may come several times."""

    def join(self, others: Self) -> Self:
        """These rows, then those."""


@dataclass(frozen=True)
class DraftInput:
    """What a draft model or CTC reads of one utterance; the decoder may read something else.

    Attributes:
        memory: (S, D) output of the draft model's encoder.
        prompt: P tokens to start from.
        speech: (S', D') output of the main model's encoder for CTC; None: ``memory`` is.
    """

    memory: torch.Tensor
    prompt: list[int]
    speech: torch.Tensor | None = None

    @property
    def ctc_input(self) -> torch.Tensor:
        """What CTC hears."""
        return self.memory if self.speech is None else self.speech


class DraftCost(NamedTuple):
    """What drafting has cost an utterance in calls of another model.

    Attributes:
        calls: That it took part in.
        nodes: Tokens of it that they evaluated.
    """

    calls: int = 0
    nodes: int = 0


class Proposer(ABC):
    """Drafts. A new way to draft supplies this and nothing else.

    Attributes:
        vocabulary: (V',) token ids that ``logits`` are of; None: all.
        needs_head_input: Whether ``start`` reads ``Prefix.head_input``, which a decoder with an own
            block computes for nobody else. Without, it drafts before the decoder's first call.
    """

    vocabulary: torch.Tensor | None = None
    needs_head_input = True

    @property
    @abstractmethod
    def max_steps(self) -> int | None:
        """How often a state can be advanced; None without limit."""

    def begin(
        self,
        roots: Sequence[Prefix],
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        draft_inputs: Sequence[DraftInput] | None = None,
        cross_keys_values: Any = None,
    ) -> Proposer:
        """The proposer of one run of a search; one that remembers utterances returns another.

        Args:
            roots: Prompts of U utterances; ``Prefix.root`` leads back to them.
            memory: (U, S, D) the main model's encoder output.
            memory_lengths: (U,) frames.
            draft_inputs: U, for draft models and CTC.
            cross_keys_values: ``TreeState.cross_keys_values``, for heads with cross-attention.
        """
        return self

    @property
    def early(self) -> Proposer | None:
        """What of it drafts behind prompts that the decoder has not evaluated."""
        return None if self.needs_head_input else self

    @abstractmethod
    def start(self, prefixes: Sequence[Prefix]) -> States:
        """States of R evaluated prefixes, or, if it needs no head input, of R prompts."""

    @abstractmethod
    def advance(self, states: States, tokens: torch.Tensor) -> States:
        """R states, each longer by its token (R,)."""

    @abstractmethod
    def logits(self, states: States) -> torch.Tensor:
        """(R, V') for the token that follows; nobody reads rows of evaluated prefixes."""

    def chain(self, states: States, depth: int) -> torch.Tensor | None:
        """(R, depth) best tokens behind R states, one after the other, where no steps are needed.

        Behind an end symbol nobody reads. None: advance and ask again for each.
        """
        return None

    def keep(self, running: Sequence[Prefix]) -> None:
        """Only these prefixes and what lies before or behind them will be asked for again."""
        return

    def cost(self, root: Prefix) -> DraftCost:
        """What drafting for the utterance of ``root`` has cost so far."""
        return DraftCost()

    def token_ids(self, columns: torch.Tensor) -> torch.Tensor:
        """Tokens of columns of ``logits``."""
        return columns if self.vocabulary is None else self.vocabulary[columns]


class HeadsProposer(Proposer):
    """Heads on the decoder draft: they start from what the decoder computed for them."""

    def start(self, prefixes: Sequence[Prefix]) -> States:
        return self.start_from(head_inputs(prefixes))

    @abstractmethod
    def start_from(self, head_input: torch.Tensor) -> States:
        """States of R evaluated prefixes.

        Args:
            head_input: (R, D) of ``NodeOutputs``.
        """


def head_inputs(prefixes: Sequence[Prefix]) -> torch.Tensor:
    """(R, D) what heads draft from."""
    return torch.stack([outputs[row] for outputs, row in (p.head_input for p in prefixes)])
