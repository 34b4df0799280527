"""The steps of a draft: the base class, and steps with scorers other than the decoder.

Such scorers (CTC, a language model) need each prefix on the host. So every step is copied to the
host. ``decoder_steps`` has faster steps, for searches without other scorers.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.scores import Scoring
from espnet_medusa.decoding.search.state import (
    SearchState,
    Strategy,
    best_continuations,
    request_scores,
)
from espnet_medusa.decoding.tree.prefix import Candidates, Prefix
from espnet_medusa.decoding.tree.proposer import Proposer, States
from espnet_medusa.decoding.tree.token_tree import upload


class PrefixStates:
    """A proposer's states of the prefixes of a step."""

    def __init__(self, proposer: Proposer, device: torch.device):
        self.proposer, self.device = proposer, device
        self.states: States | None = None
        self.rows: dict[Prefix, int] = {}

    def of(self, prefixes: Sequence[Prefix]) -> States:
        """Return states of prompts, or of children of evaluated or last requested prefixes."""
        self.states = self.proposer.append(*self.parents(prefixes))
        self.rows = {prefix: row for row, prefix in enumerate(prefixes)}
        return self.states

    def parents(self, prefixes: Sequence[Prefix]) -> tuple[States, torch.Tensor | None]:
        """Return the parents' states and the last tokens, the arguments of ``Proposer.append``.

        For prompts, return their own states and None.
        """
        if prefixes[0].parent is None:
            return self.proposer.start(prefixes), None
        parents, draft_states = [prefix.parent for prefix in prefixes], self.states
        evaluated = [*dict.fromkeys(parent for parent in parents if parent.evaluated)]
        if evaluated:
            started = self.proposer.start(evaluated)
            draft_states = started if draft_states is None else draft_states.join(started)
        rows = {prefix: row for row, prefix in enumerate([*self.rows, *evaluated])}
        if parents != [*rows]:
            chosen = upload([rows[parent] for parent in parents], self.device)
            draft_states = draft_states.select(chosen)
        return draft_states, upload([prefix.token for prefix in prefixes], self.device)


class Steps(ABC):
    """The steps of a draft; ``scoring`` is the strategy's scoring of drafts."""

    normalized = True  # whether scores of drafts are log-probabilities

    def __init__(self, strategy: Strategy, scoring: Scoring, proposer: Proposer, shape: DraftShape):
        self.strategy, self.scoring = strategy, scoring
        self.proposer, self.shape = proposer, shape
        self.device: torch.device | None = None  # of the proposer's states; set for each batch

    @abstractmethod
    def run(self, states: Sequence[SearchState]) -> None:
        """Add up to ``shape.depth`` steps to the states' drafts."""


class ScorerSteps(Steps):
    """Steps of the search itself, with the proposer's log-probabilities."""

    def run(self, states: Sequence[SearchState]) -> None:
        draft_states = PrefixStates(self.proposer, self.device)
        width, eos = self.shape.width, self.scoring.eos
        for _ in range(self.shape.depth):
            states = [s for s in states if s.draft.beam and s.draft.depth < s.draft.limit]
            if not states:
                break
            candidates = self._candidates(states, draft_states)
            for state in states:
                rows = [candidates[hypothesis.prefix] for hypothesis in state.draft.beam]
                beam = best_continuations(state.draft.beam, rows, width, eos)
                least = state.running[0].score + self.shape.min_log_prob
                beam = [hypothesis for hypothesis in beam if hypothesis.score >= least]
                state.draft.depth += bool(beam)
                beam = self.strategy.prune_drafted_beam(state, beam)
                state.draft.visit(beam, state.max_length, eos)

    def _candidates(
        self, states: Sequence[SearchState], draft_states: PrefixStates
    ) -> dict[Prefix, Candidates]:
        """Return candidates of all beams: the decoder's if known, else the proposer's."""
        known, drafted = [], []
        for state in states:
            prefixes = [hypothesis.prefix for hypothesis in state.draft.beam]
            for requests, evaluated in ((known, True), (drafted, False)):
                some = [prefix for prefix in prefixes if prefix.evaluated == evaluated]
                if some:
                    requests.append(request_scores(state.scorers, state.draft.beam, some))
        self.strategy.scoring.find_candidates(known, self.strategy.width)
        candidates = {p: p.candidates for request in known for p in request.prefixes}
        prefixes = [prefix for request in drafted for prefix in request.prefixes]
        if prefixes:
            logits = self.proposer.logits(draft_states.of(prefixes))
            rows = self.scoring.candidates(drafted, logits, self.strategy.width)
            candidates |= dict(zip(prefixes, rows, strict=True))
        return candidates
