"""Steps run ahead where other scorers than the decoder take part: CTC, a language model.

They live on the host and need to know each prefix, so every step is read back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from espnet_medusa.search.ahead.steps import Steps
from espnet_medusa.search.scores import CANDIDATES, Candidates, Request
from espnet_medusa.search.state import SearchState, best_continuations
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import Proposer, States


class ScorerSteps(Steps):
    """The search's own step, again and again."""

    def run(self, states: Sequence[SearchState]) -> None:
        draft_states = PrefixStates(self.proposer, self.device)
        for _ in range(self.shape.depth):
            states = [state for state in states if state.draft.beam and state.draft.may_go_on]
            if not states:
                break
            candidates = self._candidates(states, draft_states)
            for state in states:
                rows = [candidates[hypothesis.prefix] for hypothesis in state.draft.beam]
                beam = best_continuations(
                    state.draft.beam, rows, self.shape.width, self.scoring.eos
                )
                state.draft.depth += 1
                state.draft.visit(state.drafted(beam), state.max_length, self.scoring.eos)

    def _candidates(
        self, states: Sequence[SearchState], draft_states: PrefixStates
    ) -> dict[Prefix, Candidates]:
        """What follows the beams: the decoder's word where it is known, else the proposer's."""
        found, known, drafted = {}, [], []
        for state in states:
            prefixes = [hypothesis.prefix for hypothesis in state.draft.beam]
            for requests, evaluated in ((known, True), (drafted, False)):
                some = [prefix for prefix in prefixes if prefix.evaluated == evaluated]
                if some:
                    requests.append(Request(state.scorers, some))
        self.strategy.scoring.find_candidates(known, self.strategy.width)
        for request in known:
            found |= {prefix: prefix.memo[CANDIDATES] for prefix in request.prefixes}
        prefixes = [prefix for request in drafted for prefix in request.prefixes]
        if prefixes:
            logits = self.proposer.logits(draft_states.of(prefixes))
            rows = self.scoring.candidates(drafted, logits, self.strategy.width)
            found |= dict(zip(prefixes, rows, strict=True))
        return found


class PrefixStates:
    """A proposer's draft_states of the prefixes that a step looks at.

    Args:
        proposer: Makes them.
        device: Where they are.
    """

    def __init__(self, proposer: Proposer, device: torch.device):
        self.proposer, self.device = proposer, device
        self.states: States | None = None
        self.rows: dict[Prefix, int] = {}

    def of(self, prefixes: Sequence[Prefix]) -> States:
        """States of prompts, or of prefixes whose parents are evaluated or were asked for before.

        Before: one step earlier.
        """
        if prefixes[0].parent is None:
            self.states = self.proposer.start(prefixes)
            self.rows = {prefix: row for row, prefix in enumerate(prefixes)}
            return self.states
        parents = [prefix.parent for prefix in prefixes]
        evaluated = [*dict.fromkeys(parent for parent in parents if parent.evaluated)]
        draft_states, rows = self.states, dict(self.rows)
        if evaluated:
            started = self.proposer.start(evaluated)
            draft_states = started if draft_states is None else draft_states.join(started)
            rows |= {parent: len(self.rows) + row for row, parent in enumerate(evaluated)}
        chosen = torch.tensor([rows[parent] for parent in parents], device=self.device)
        tokens = torch.tensor([prefix.token for prefix in prefixes], device=self.device)
        self.states = self.proposer.advance(draft_states.select(chosen), tokens)
        self.rows = {prefix: row for row, prefix in enumerate(prefixes)}
        return self.states
