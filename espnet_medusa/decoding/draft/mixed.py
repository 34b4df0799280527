"""A mixture of two proposers, such as CTC and heads."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import DraftContext, DraftCost, Proposer, States


@dataclass(frozen=True)
class MixedStates(States):
    first: States
    second: States
    steps: torch.Tensor  # (R,) tokens since ``start``


class MixedProposer(Proposer):
    """A linear mixture of two proposers' probabilities.

    After ``max_steps`` of one proposer, the other is used alone. Raises InputError if ``weight``,
    that of the first one, is not in [0, 1], or vocabularies differ.
    """

    def __init__(self, first: Proposer, second: Proposer, weight: float = 0.3):
        if not 0 <= weight <= 1:
            raise InputError(f"weight of the first of two proposers: {weight}; allowed: 0 to 1")
        tokens = [None if v is None else v.tolist() for v in (first.vocabulary, second.vocabulary)]
        if tokens[0] != tokens[1]:
            raise InputError("two proposers draft over different vocabularies; give both the same")
        self.first, self.second, self.weight = first, second, weight
        self.vocabulary = first.vocabulary
        self.needs_head_input = first.needs_head_input or second.needs_head_input
        limits = first.max_steps, second.max_steps
        self.max_steps = None if None in limits else max(limits)
        self.device: torch.device | None = None

    @property
    def early(self) -> Proposer | None:
        if not self.needs_head_input:
            return self
        parts = (self.first, self.weight), (self.second, 1 - self.weight)
        early = (part.early for part, weight in parts if weight > 0)
        return next((part for part in early if part is not None), None)

    def begin(self, context: DraftContext) -> Proposer:
        begun = copy.copy(self)
        begun.device = context.device
        begun.first, begun.second = self.first.begin(context), self.second.begin(context)
        return begun

    def start(self, prefixes: Sequence[Prefix]) -> MixedStates:
        first, second = self.first.start(prefixes), self.second.start(prefixes)
        steps = torch.zeros(len(prefixes), dtype=torch.long, device=self.device)
        return MixedStates(first, second, steps)

    def advance(self, states: MixedStates, tokens: torch.Tensor) -> MixedStates:
        return MixedStates(
            self.first.advance(states.first, tokens),
            self.second.advance(states.second, tokens),
            states.steps + 1,
        )

    def logits(self, states: MixedStates) -> torch.Tensor:
        reached = [_reached(proposer, states.steps) for proposer in (self.first, self.second)]
        share = torch.where(reached[0] & reached[1], self.weight, reached[0].float())[:, None]
        first = _log_probs(self.first, states.first, reached[0])
        second = _log_probs(self.second, states.second, reached[1])
        return torch.logaddexp(share.log() + first, (1 - share).log() + second)

    def keep(self, running: Sequence[Prefix]) -> None:
        self.first.keep(running)
        self.second.keep(running)

    def cost(self, root: Prefix) -> DraftCost:
        costs = self.first.cost(root), self.second.cost(root)
        return DraftCost(*map(sum, zip(*costs, strict=True)))


def _reached(proposer: Proposer, steps: torch.Tensor) -> torch.Tensor:
    """Return whether the proposer can draft after this many steps (R,)."""
    most = proposer.max_steps
    return torch.ones_like(steps, dtype=torch.bool) if most is None else steps <= most


def _log_probs(proposer: Proposer, states: States, reached: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities (R, V'); -inf in rows that ``_reached`` excludes."""
    if proposer.max_steps is None or bool(reached.all()):
        return proposer.logits(states).float().log_softmax(dim=-1)
    drafted = proposer.logits(states.select(reached.nonzero()[:, 0])).float().log_softmax(dim=-1)
    log_probs = drafted.new_full((len(reached), drafted.size(1)), -torch.inf)
    log_probs[reached] = drafted
    return log_probs
