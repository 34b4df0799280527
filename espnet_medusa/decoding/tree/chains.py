"""Greedy search with chains as drafts, without Python between decoder calls: its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from espnet_medusa.decoding.tree.depth_plan import DepthPlan

# Returns the ``TreeState`` of ``TreeDecoder.start`` for these utterances.
Begin = Callable[[Sequence[int]], Any]


@dataclass(frozen=True, eq=False)
class ChainRules:
    """Which tokens may be decoded and drafted."""

    eos: int  # end symbol
    # (M, V) bool, tokens that are forbidden after 0, 1, ... tokens; the last row after all later
    # ones. None: no token is forbidden.
    blocked: torch.Tensor | None
    timestamps: Any  # ``TimestampRules`` for the whole vocabulary; None: there are no such rules
    renormalize: bool  # whether log-probabilities are normalized over allowed tokens
    depth: int  # most tokens of a draft; 0: no drafts
    min_log_prob: float  # drafts end before their log-probability (the drafter's) is lower


@dataclass
class ChainRow:
    """An utterance: what is requested, and the results."""

    prompt: Sequence[int]
    max_length: int  # tokens after the prompt; with the end symbol one more
    min_length: int  # tokens before an end symbol
    # Takes new tokens and their log-probabilities, in order, and returns whether the text goes on.
    # It must be called at the end of the text and, if ``asks``, every ``GIVE_UP_STEPS`` tokens.
    write: Callable[[Sequence[int], Sequence[float]], bool]
    asks: bool = False
    text: Sequence[int] | None = None  # that may be right, for drafters that use it
    probed: int | None = None  # index of a prompt token whose hidden state is requested
    hidden: torch.Tensor | None = None  # (D,) this hidden state
    calls: int = 0  # decoder calls
    nodes: int = 0  # evaluated tokens
    drafted: list[int] = field(default_factory=list)  # drafts with 1, 2, ... steps
    accepted: list[int] = field(default_factory=list)  # drafts with 1, 2, ... accepted steps
    seconds: float = 0.0  # its share of all calls and drafts, without ``Begin``
    draft_seconds: float = 0.0  # of the drafts


@dataclass(frozen=True, eq=False)
class ChainBatch:
    """U utterances that one call of a ``ChainLoop`` decodes."""

    begin: Begin  # begins utterances, each when the decoder has room for it
    rules: ChainRules
    rows: Sequence[ChainRow]  # U
    # Depths of drafts, at most ``rules.depth``; receives the seconds of calls. None: always
    # ``rules.depth``.
    plan: DepthPlan | None
    together: int  # most utterances in the decoder at once; U may be greater if the loop ``queues``

    @property
    def longest(self) -> int:
        """Most tokens of an utterance, with its prompt."""
        return max(len(row.prompt) + row.max_length for row in self.rows)


class ChainLoop(Protocol):
    """Greedy search with chains as drafts."""

    queues: bool  # whether waiting utterances take the places of those that have ended

    def __call__(self, batch: ChainBatch) -> None:
        """Decode the utterances to their ends, and set the results of their rows."""
