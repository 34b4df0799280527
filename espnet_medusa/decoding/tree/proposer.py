"""Drafters, which propose next tokens of prefixes that the decoder has not evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from espnet_medusa.decoding.tree.prefix import Prefix

MISSING = -1  # token or column after the end of a chain
# Logits (R * depth, V') of R chains to a copy with forbidden tokens at -inf.
Restrict = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class States:
    """States of R prefixes; by default, attributes are tensors, lists or ``States`` of R rows."""

    def select(self, rows: torch.Tensor) -> States:
        """Return the states of these rows, in this order; a row may occur several times."""
        return type(self)(*(_select(part, rows) for part in vars(self).values()))

    def join(self, others: States) -> States:
        """Return these rows followed by ``others``."""
        return type(self)(*map(_join, vars(self).values(), vars(others).values()))


def _select(part: torch.Tensor | list | States, rows: torch.Tensor) -> Any:
    if isinstance(part, States):
        return part.select(rows)
    return [part[row] for row in rows.tolist()] if isinstance(part, list) else part[rows]


def _join(part: torch.Tensor | list | States, other: Any) -> Any:
    if isinstance(part, States):
        return part.join(other)
    return part + other if isinstance(part, list) else torch.cat([part, other])


@dataclass(frozen=True)
class DraftInput:
    """An utterance as input of a draft model, of CTC or of a given text."""

    encoder_out: torch.Tensor  # (S, D), of the draft model, or of the main model if there is none
    prompt: list[int]  # P prompt tokens
    frames: torch.Tensor | None = None  # (S,) frames of each row of ``encoder_out``; None: one each
    # (S', D') output of the main model's encoder, for CTC; None: ``encoder_out``.
    main_encoder_out: torch.Tensor | None = None
    ctc_hypothesis: Any = None  # the CTC branch's hypothesis, if it has been computed already
    text: Sequence[int] | None = None  # tokens of the main model that may be right; None: unknown

    @property
    def ctc_input(self) -> torch.Tensor:
        """Encoder output that CTC reads."""
        return self.encoder_out if self.main_encoder_out is None else self.main_encoder_out


@dataclass(frozen=True)
class DraftContext:
    """The batch of U utterances that a drafter is started for."""

    roots: Sequence[Prefix]  # U prompts; ``Prefix.root`` of the search's prefixes
    device: torch.device  # device of the main model
    draft_inputs: Sequence[DraftInput] = ()  # U, for draft models and CTC
    cross_keys_values: Any = None  # ``TreeState.cross_keys_values``, for heads with cross-attention


class DraftCost(NamedTuple):
    """An utterance's share of the calls of a draft model."""

    calls: int = 0  # calls with nodes of the utterance
    nodes: int = 0  # nodes of the utterance that these calls evaluated


class Proposer(ABC):
    """The base class of drafters; a new kind of drafter implements only this class and ``States``.

    Attributes:
        vocabulary: (V',) token ids of the columns of ``logits``; None: all.
        needs_head_input: Whether ``start`` reads ``Prefix.head_input``. If False, the drafter can
            draft before the decoder's first call.
        max_steps: How often a state can be advanced; None: without limit.
    """

    vocabulary: torch.Tensor | None = None
    needs_head_input = True
    max_steps: int | None = None

    def begin(self, context: DraftContext) -> Proposer:
        """Return the proposer for one batch; a proposer with state per utterance returns a copy."""
        return self

    @property
    def early(self) -> Proposer | None:
        """The part of this proposer that can draft before the first decoder call; None: no part."""
        return None if self.needs_head_input else self

    def drafts(self, root: Prefix) -> bool:
        """Return whether it can draft for the utterance of ``root``."""
        return True

    @abstractmethod
    def start(self, prefixes: Sequence[Prefix]) -> States:
        """Return the states of R evaluated prefixes, or of prompts unless ``needs_head_input``."""

    @abstractmethod
    def advance(self, states: States, tokens: torch.Tensor) -> States:
        """Return R states after appending a token (R,) to each."""

    @abstractmethod
    def logits(self, states: States) -> torch.Tensor:
        """Return (R, V') for the next token; rows of evaluated prefixes are unused."""

    def append(self, states: States, tokens: torch.Tensor | None) -> States:
        """Return ``advance(states, tokens)``, or ``states`` if ``tokens`` is None."""
        return states if tokens is None else self.advance(states, tokens)

    def chain(
        self,
        states: States,
        depth: int,
        min_log_prob: float,
        tokens: torch.Tensor | None = None,
        restrict: Restrict | None = None,
    ) -> torch.Tensor | None:
        """Draft ``depth`` tokens (R, depth) greedily, one after the other, in a single operation.

        Drafts start from ``append(states, tokens)``. Drafts after an end symbol are arbitrary. A
        chain ends before the token that brings its log-probability below ``min_log_prob``; the
        rest of its row is ``MISSING``. It also ends where ``restrict`` leaves no token. None: not
        supported; use ``advance`` and ``logits``.
        """
        return None

    def keep(self, running: Sequence[Prefix]) -> None:
        """Free cached data of all prefixes but these, their ancestors and their descendants."""
        return

    def cost(self, root: Prefix) -> DraftCost:
        """Return the draft model's cost so far for the utterance of ``root``."""
        return DraftCost()

    def token_ids(self, columns: torch.Tensor) -> torch.Tensor:
        """Return the token ids of columns of ``logits``; ``MISSING`` columns remain."""
        if self.vocabulary is None:
            return columns
        return torch.where(columns == MISSING, MISSING, self.vocabulary[columns])


class HeadsProposer(Proposer):
    """Heads on the decoder, which draft from the decoder's hidden states."""

    def start(self, prefixes: Sequence[Prefix]) -> States:
        return self.start_from(head_inputs(prefixes))

    @abstractmethod
    def start_from(self, head_input: torch.Tensor) -> States:
        """Return the states of R prefixes with this (R, D) ``NodeOutputs.head_input``."""


def head_inputs(prefixes: Sequence[Prefix]) -> torch.Tensor:
    """Return the head inputs (R, D) of evaluated prefixes."""
    return torch.stack([outputs[row] for outputs, row in (p.head_input for p in prefixes)])
