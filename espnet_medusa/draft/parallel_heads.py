"""Parallel heads as a proposer: head k predicts step k after an evaluated prefix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from espnet_medusa.tree.proposer import MISSING, HeadsProposer, States


@dataclass(frozen=True)
class ParallelStates(States):
    """Origins and lengths of R drafted prefixes."""

    tables: torch.Tensor  # (P, K, V') logits of all K heads after P evaluated prefixes
    origins: torch.Tensor  # (R,) index of the evaluated prefix that each drafted prefix extends
    steps: torch.Tensor  # (R,) number of later tokens; head ``steps`` predicts the next one

    def select(self, rows: torch.Tensor) -> ParallelStates:
        return replace(self, origins=self.origins[rows], steps=self.steps[rows])

    def join(self, others: ParallelStates) -> ParallelStates:
        return ParallelStates(
            torch.cat([self.tables, others.tables]),
            torch.cat([self.origins, others.origins + len(self.tables)]),
            torch.cat([self.steps, others.steps]),
        )


@dataclass(eq=False)
class ParallelHeadsProposer(HeadsProposer):
    """A proposer with parallel heads, which do not depend on drafted tokens."""

    tables: Callable[[torch.Tensor], torch.Tensor]  # logits of all heads, (R, D) to (R, K, V')
    max_steps: int = field()  # K; required, although the base class has a default
    vocabulary: torch.Tensor | None = None

    def start_from(self, head_input: torch.Tensor) -> ParallelStates:
        rows = torch.arange(len(head_input), device=head_input.device)
        return ParallelStates(self.tables(head_input), rows, torch.zeros_like(rows))

    def advance(self, states: ParallelStates, tokens: torch.Tensor) -> ParallelStates:
        return replace(states, steps=states.steps + 1)

    def logits(self, states: ParallelStates) -> torch.Tensor:
        return states.tables[states.origins, states.steps - 1]

    def chain(self, states, depth, min_log_prob, tokens=None, restrict=None) -> torch.Tensor | None:
        states = self.append(states, tokens)
        steps = torch.arange(depth, device=states.steps.device) - 1 + states.steps[:, None]
        # After the last head, its token again: it can only be rejected or right.
        scores = states.tables[states.origins[:, None], steps.clamp(max=self.max_steps - 1)]
        if restrict is not None:
            scores = restrict(scores.flatten(0, 1)).view(scores.shape)
        best, columns = scores.max(dim=-1)
        if min_log_prob > -math.inf:
            log_probs = best.float() - scores.float().logsumexp(dim=-1)
            columns = columns.masked_fill(log_probs.cumsum(dim=1) < min_log_prob, MISSING)
        if restrict is not None:
            columns = columns.masked_fill(best == -math.inf, MISSING)
        return self.token_ids(columns)
