"""Draft steps if only the decoder scores; the host reads all steps of a draft at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import NamedTuple

import torch

from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.drafting.steps import PrefixStates, Steps
from espnet_medusa.decoding.search.scores import DECODER, Scoring
from espnet_medusa.decoding.search.state import Hypothesis, SearchState, Strategy
from espnet_medusa.decoding.search.timestamps import TimestampStates
from espnet_medusa.decoding.tree.best_tokens import Restriction, top_scores
from espnet_medusa.decoding.tree.proposer import MISSING, Proposer, States
from espnet_medusa.decoding.tree.token_tree import upload


class Step(NamedTuple):
    """One utterance's beam of W hypotheses after a step."""

    scores: list[float]  # W; -inf for missing hypotheses
    parents: list[int]  # W places in the previous beam
    tokens: list[int]  # W


class DecoderSteps(Steps):
    """Steps of the search as tensor operations over all beams.

    ``normalized``: whether log-probabilities are needed. Logits suffice to draft a single chain.
    """

    def __init__(self, strategy: Strategy, scoring: Scoring, proposer: Proposer, shape: DraftShape):
        super().__init__(strategy, scoring, proposer, shape)
        self.constrained = not scoring.constraints.is_empty
        self.constrain_logits = scoring.constrain_logits or scoring.constraints.renormalize
        chain = shape.width == 1 and shape.choices is None and shape.budget is None
        self.normalized = not chain or strategy.needs_draft_scores

    def run(self, states: Sequence[SearchState]) -> None:
        # A proposer's chain may differ from its steps. Which of them drafts for an utterance must
        # not depend on the other utterances.
        groups: dict[bool, list[SearchState]] = {False: [], True: []}
        for state in states:
            groups[self._is_limited(state)].append(state)
        for limited, group in groups.items():
            if group:
                self._draft(group, limited)

    def _is_limited(self, state: SearchState) -> bool:
        """Return whether constraints change the scores of a draft that may change the text."""
        if not self.strategy.drafts_change_text:
            return False
        length, constraints = state.draft.beam[0].prefix.length, self.scoring.constraints
        last = length + self.shape.depth - 1
        return length < state.scorers.min_length or constraints.affect(length, last)

    def _draft(self, states: Sequence[SearchState], limited: bool) -> None:
        """Draft for states; ``limited``: whether constraints affect a chain."""
        most = self.shape.depth
        limits = [
            min(state.max_length - state.draft.beam[0].prefix.length, most, state.draft.limit)
            for state in states
        ]
        depth = max(limits, default=0)
        if depth > 0:
            beams = Beams(states, self.device)
            parents = PrefixStates(self.proposer, self.device).parents(beams.prefixes)
            chains = self._chain(beams, *parents, depth, limited)
            if chains is not None:
                follow_chains(self.strategy, states, chains.tolist())
                return
            steps = self._steps(beams, self.proposer.append(*parents), depth, limits)
            visit(self.strategy, states, steps)

    def _chain(
        self,
        beams: Beams,
        draft_states: States,
        tokens: torch.Tensor | None,
        depth: int,
        limited: bool,
    ) -> torch.Tensor | None:
        """Return a chain (U, depth) of ``Proposer.chain``, or None if this is not possible.

        Constraints are ignored unless drafts change the text: the decoder call rejects forbidden
        tokens.
        """
        constraints = self.scoring.constraints
        if self.normalized or constraints.forced_prefix:
            return None
        if any(prefix.evaluated for prefix in beams.prefixes):
            return None
        restrict = None
        if limited:
            if constraints.timestamps is not None:
                return None
            restrict = partial(self._constrain, beams, range(depth), None)
        return self.proposer.chain(draft_states, depth, self.shape.min_log_prob, tokens, restrict)

    def _steps(
        self, beams: Beams, draft_states: States, depth: int, limits: Sequence[int]
    ) -> list[list[Step]]:
        evaluated = EvaluatedPrefixes(beams, self.proposer, self.shape)
        scores, rules = beams.scores, self.scoring.constraints.timestamps
        timed = None if rules is None else rules.states(beams.prefixes, scores.device)
        steps, counts = [], []
        limits = upload(limits, scores.device) if min(limits) < depth else None
        for step in range(depth):
            draft_states = evaluated.replace_states(draft_states)
            gains, tokens = self._continuations(draft_states, beams, step, timed)
            gains, tokens = evaluated.replace_candidates(gains, tokens)
            count, single = gains.size(1), gains.shape == (len(scores), 1)
            counts.append(count)
            scores, places, tokens = self._prune(scores, gains, tokens, single)
            if self.shape.min_probability > 0:
                least = beams.scores[:, :1] + self.shape.min_log_prob
                scores = scores.masked_fill(scores < least, -math.inf)
            steps.append((scores, places, tokens))
            ended = (tokens == self.scoring.eos) | (scores == -math.inf)
            if limits is not None:
                ended |= (limits <= step + 1)[:, None]
            # On a GPU the check synchronizes, which pays if drafts often end early.
            early = ended.device.type == "cpu" or self.shape.min_probability > 0
            if step + 1 == depth or early and bool(ended.all()):
                break
            scores = scores.masked_fill(ended, -math.inf)
            evaluated.follow(places, count)
            if not single:
                rows = flat_rows(places // count, len(gains))
                draft_states = draft_states.select(rows)
                timed = timed and timed.select(rows)
            # Proposers may skip computations after an end symbol.
            tokens = tokens.masked_fill(scores == -math.inf, self.scoring.eos)
            draft_states = self.proposer.advance(draft_states, tokens.flatten())
            timed = timed and rules.advance(timed, tokens.flatten())
        return read(steps, counts)

    def _continuations(
        self, draft_states: States, beams: Beams, step: int, timed: TimestampStates | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weighted log-probabilities (or logits) and ids (R, c) of the best next tokens."""
        scores = self.proposer.logits(draft_states)
        count = self.shape.choices[step] if self.shape.choices else self.shape.width
        count = min(count, scores.size(1))
        offsets = [step] * (len(scores) // len(beams.lengths))
        if self.scoring.at_once and not any(beams.least):
            restriction = self._restriction(beams, offsets, timed, scores)
            gains, columns = self.scoring.top_tokens(scores, count, restriction)
            return gains, self.proposer.token_ids(columns)
        first = self.constrain_logits or not self.constrained
        if not first:
            scores = scores.float().log_softmax(dim=-1)
        scores = self._constrain(beams, offsets, timed, scores)
        gains, columns = top_scores(scores, count)
        gains = gains.float()
        if first and (self.normalized or self.shape.min_probability > 0):
            sums = scores.float().logsumexp(dim=-1, keepdim=True)
            gains -= sums.clamp(min=torch.finfo(sums.dtype).min)  # all may be -inf
        if (weight := self.scoring.weights[DECODER]) != 1:
            gains *= weight
        return gains, self.proposer.token_ids(columns)

    def _constrain(
        self,
        beams: Beams,
        offsets: Sequence[int],
        timed: TimestampStates | None,
        scores: torch.Tensor,
    ) -> torch.Tensor:
        """Return the scores with forbidden tokens at -inf; arguments as in ``_restriction``."""
        restriction = self._restriction(beams, offsets, timed, scores)
        return scores if restriction is None else restriction.apply(scores, torch.float32)

    def _restriction(
        self,
        beams: Beams,
        offsets: Sequence[int],
        timed: TimestampStates | None,
        scores: torch.Tensor,
    ) -> Restriction | None:
        """Return the constraints for U * len(offsets) rows, so many tokens after each beam."""
        limited, constraints = any(beams.least), self.scoring.constraints
        if not self.constrained and not limited:
            return None
        starts = zip(beams.lengths, beams.least, strict=True)
        places = [(length + offset, least) for length, least in starts for offset in offsets]
        lengths, least = upload(places, scores.device).unbind(1)
        least = least if limited else None
        groups = timed and constraints.timestamps.groups(timed)
        return constraints.restrict(scores, lengths, least, groups, torch.float32)

    def _prune(
        self, scores: torch.Tensor, gains: torch.Tensor, tokens: torch.Tensor, single: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the next beams (U, W): scores, places among all continuations, and tokens.

        ``single``: each beam has one hypothesis with one continuation.
        """
        if single:
            return scores + gains, torch.zeros_like(tokens), tokens
        scores = (scores[:, :, None] + gains.view(*scores.shape, -1)).flatten(1)
        tokens = tokens.view(len(scores), -1)
        if self.shape.choices is None and scores.size(1) > self.shape.width:
            scores, places = scores.topk(self.shape.width, dim=-1)
            return scores, places, tokens.gather(1, places)
        places = torch.arange(scores.size(1), device=scores.device).expand_as(scores)
        return scores, places, tokens


def read(
    steps: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], counts: Sequence[int]
) -> list[list[Step]]:
    """Copy scores, places (among all continuations) and tokens, (U, W) each, to the host at once.

    ``counts``: continuations per prefix, of each step.
    """
    columns = [torch.cat(parts, dim=1).double() for parts in zip(*steps, strict=True)]
    tables = torch.stack(columns).cpu().split([scores.size(1) for scores, _, _ in steps], dim=2)
    return [
        [
            Step(scores, [int(place) // count for place in places], [*map(int, tokens)])
            for scores, places, tokens in zip(*table.tolist(), strict=True)
        ]
        for table, count in zip(tables, counts, strict=True)
    ]


class Beams:
    """The hypotheses from which a draft starts, W of each of U states.

    Attributes:
        prefixes: U W; a beam of fewer than W is padded with its first prefix.
        scores: (U, W), -inf where padded; uploaded when first used.
        lengths: U, tokens after the prompt.
        least: U, minimum numbers of tokens before an end symbol.
    """

    def __init__(self, states: Sequence[SearchState], device: torch.device):
        width = max(len(state.draft.beam) for state in states)
        self.prefixes, self._scores, self._device = [], [], device
        for state in states:
            beam, missing = state.draft.beam, width - len(state.draft.beam)
            self.prefixes += [h.prefix for h in beam] + [beam[0].prefix] * missing
            self._scores.append([h.score for h in beam] + [-math.inf] * missing)
        self.lengths = [state.draft.beam[0].prefix.length for state in states]
        self.least = [state.scorers.min_length for state in states]

    @cached_property
    def scores(self) -> torch.Tensor:
        return upload(self._scores, self._device)


class EvaluatedPrefixes:
    """Prefixes of the beams that the decoder has evaluated, and their evaluated descendants.

    At these prefixes, the draft uses the decoder's candidates, and a proposer state that starts
    from the prefix. ``nodes`` (U W,): each hypothesis's index in ``prefixes``, or -1.
    """

    def __init__(self, beams: Beams, proposer: Proposer, shape: DraftShape):
        self.prefixes = [*dict.fromkeys(p for p in beams.prefixes if p.evaluated)]
        for prefix in self.prefixes:  # the list grows during the loop
            # A search with other scorers sets candidates only of prefixes that it has reached.
            self.prefixes += [
                child
                for child in prefix.children.values()
                if child.evaluated and child.candidates is not None
            ]
        if not self.prefixes:
            return
        device = beams.scores.device
        index = {prefix: node for node, prefix in enumerate(self.prefixes)}
        self.nodes = upload([index.get(p, -1) for p in beams.prefixes], device)
        self.states = proposer.start(self.prefixes)
        # (P, W, 3) gain, token and node of the best continuations; the node is -1 if not evaluated.
        table = []
        for prefix in self.prefixes:
            pairs = [*zip(prefix.candidates.gains, prefix.candidates.tokens, strict=True)]
            rows = [(*pair, index.get(prefix.children.get(pair[1]), -1)) for pair in pairs]
            table.append([*rows, *[(-math.inf, 0, -1)] * shape.width][: shape.width])
        gains, tokens, children = upload(table, device, torch.double).unbind(-1)
        self.gains, self.tokens, self.children = gains.float(), tokens.long(), children.long()

    def replace_states(self, draft_states: States) -> States:
        """Return the states, with new ones for evaluated prefixes."""
        if not self.prefixes:
            return draft_states
        places = torch.arange(len(self.nodes), device=self.nodes.device)
        rows = torch.where(self.nodes >= 0, self.nodes + len(self.nodes), places)
        return draft_states.join(self.states).select(rows)

    def replace_candidates(
        self, gains: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gains and tokens (U W, c), with the decoder's at evaluated prefixes."""
        if not self.prefixes:
            return gains, tokens
        here, nodes = self.nodes[:, None] >= 0, self.nodes.clamp(min=0)
        count = gains.size(1)
        gains = torch.where(here, self.gains[nodes, :count], gains)
        return gains, torch.where(here, self.tokens[nodes, :count], tokens)

    def follow(self, places: torch.Tensor, count: int) -> None:
        """Update ``nodes`` for the continuations at ``places`` (U, W'), ``count`` per prefix."""
        if not self.prefixes:
            return
        nodes = self.nodes[flat_rows(places // count, len(self.nodes))]
        children = self.children[nodes.clamp(min=0), (places % count).flatten()]
        self.nodes = torch.where(nodes >= 0, children, nodes)


def flat_rows(places: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Convert places (U, W') among each utterance's rows to places (U W',) among all rows."""
    first = torch.arange(len(places), device=places.device) * (num_rows // len(places))
    return (places + first[:, None]).flatten()


def follow_chains(
    strategy: Strategy, states: Sequence[SearchState], chains: Sequence[Sequence[int]]
) -> None:
    """Add the tokens of each state's chain to its draft, up to ``MISSING``."""
    for state, tokens in zip(states, chains, strict=True):
        draft = state.draft
        for token in tokens:
            if not (draft.beam and draft.depth < draft.limit):
                break
            reached = []
            if token != MISSING:
                reached.append(Hypothesis(draft.beam[0].prefix.child(token)))
                draft.depth += 1
            reached = strategy.prune_drafted_beam(state, reached)
            draft.visit(reached, state.max_length, strategy.scoring.eos)


def visit(
    strategy: Strategy, states: Sequence[SearchState], steps: Sequence[Sequence[Step]]
) -> None:
    """Add the prefixes of the steps to the states' drafts."""
    for row, state in enumerate(states):
        beam = [hypothesis.prefix for hypothesis in state.draft.beam]
        for step in steps:
            if not (state.draft.beam and state.draft.depth < state.draft.limit):
                break
            going = {hypothesis.prefix for hypothesis in state.draft.beam}
            beam = [
                beam[parent].child(token) if score > -math.inf and beam[parent] in going else None
                for score, parent, token in zip(*step[row], strict=True)
            ]
            reached = [
                Hypothesis(prefix, score)
                for prefix, score in zip(beam, step[row].scores, strict=True)
                if prefix is not None
            ]
            state.draft.depth += bool(reached)
            reached = strategy.prune_drafted_beam(state, reached)
            state.draft.visit(reached, state.max_length, strategy.scoring.eos)
