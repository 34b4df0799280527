"""Steps run ahead where other scorers than the decoder take part: CTC, a language model.

They live on the host and need to know each prefix, so every step is read back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from espnet_medusa.search.ahead.steps import Steps
from espnet_medusa.search.scores import CANDIDATES, Candidates, Request
from espnet_medusa.search.walk import Walk, best_continuations
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.surrogate import States, Surrogate


class ScorerSteps(Steps):
    """The search's own step, again and again."""

    def run(self, walks: Sequence[Walk]) -> None:
        states = PrefixStates(self.surrogate, self.device)
        for _ in range(self.shape.depth):
            walks = [walk for walk in walks if walk.draft.beam and walk.draft.may_go_on]
            if not walks:
                break
            candidates = self._candidates(walks, states)
            for walk in walks:
                rows = [candidates[hypothesis.prefix] for hypothesis in walk.draft.beam]
                beam = best_continuations(walk.draft.beam, rows, self.shape.width, self.scoring.eos)
                walk.draft.depth += 1
                walk.draft.visit(walk.drafted(beam), walk.max_length, self.scoring.eos)

    def _candidates(self, walks: Sequence[Walk], states: PrefixStates) -> dict[Prefix, Candidates]:
        """What follows the beams: the decoder's word where it is known, else the surrogate's."""
        found, known, drafted = {}, [], []
        for walk in walks:
            prefixes = [hypothesis.prefix for hypothesis in walk.draft.beam]
            for requests, evaluated in ((known, True), (drafted, False)):
                some = [prefix for prefix in prefixes if prefix.evaluated == evaluated]
                if some:
                    requests.append(Request(walk.scorers, some))
        self.strategy.scoring.find_candidates(known, self.strategy.width)
        for request in known:
            found |= {prefix: prefix.memo[CANDIDATES] for prefix in request.prefixes}
        prefixes = [prefix for request in drafted for prefix in request.prefixes]
        if prefixes:
            logits = self.surrogate.logits(states.of(prefixes))
            rows = self.scoring.candidates(drafted, logits, self.strategy.width)
            found |= dict(zip(prefixes, rows, strict=True))
        return found


class PrefixStates:
    """A surrogate's states of the prefixes that a step looks at.

    Args:
        surrogate: Makes them.
        device: Where they are.
    """

    def __init__(self, surrogate: Surrogate, device: torch.device):
        self.surrogate, self.device = surrogate, device
        self.states: States | None = None
        self.rows: dict[Prefix, int] = {}

    def of(self, prefixes: Sequence[Prefix]) -> States:
        """States of prompts, or of prefixes whose parents are evaluated or were asked for before.

        Before: one step earlier.
        """
        if prefixes[0].parent is None:
            self.states = self.surrogate.start(prefixes)
            self.rows = {prefix: row for row, prefix in enumerate(prefixes)}
            return self.states
        parents = [prefix.parent for prefix in prefixes]
        evaluated = [*dict.fromkeys(parent for parent in parents if parent.evaluated)]
        states, rows = self.states, dict(self.rows)
        if evaluated:
            started = self.surrogate.start(evaluated)
            states = started if states is None else states.join(started)
            rows |= {parent: len(self.rows) + row for row, parent in enumerate(evaluated)}
        chosen = torch.tensor([rows[parent] for parent in parents], device=self.device)
        tokens = torch.tensor([prefix.token for prefix in prefixes], device=self.device)
        self.states = self.surrogate.advance(states.select(chosen), tokens)
        self.rows = {prefix: row for row, prefix in enumerate(prefixes)}
        return self.states
