"""Greedy search with an acceptance rule, and sampling.

After each decoder call, greedy search appends the longest path of accepted drafts, and then the
best token. With the exact rule the text equals that of greedy search without drafts.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from espnet_medusa.decoding.search.acceptance import AcceptanceRule, exact
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.drafting.lookahead import NO_DRAFTS, DraftShape
from espnet_medusa.decoding.search.drafting.step_planner import StepPlanner
from espnet_medusa.decoding.search.scores import DECODER, Request, Scoring, UtteranceScorers
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.state import (
    Draft,
    EndedHypothesis,
    Hypothesis,
    SearchState,
    Strategy,
    check_numbers,
)
from espnet_medusa.decoding.tree.best_tokens import BestTokens, Restriction, best_tokens
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import Proposer
from espnet_medusa.decoding.tree.token_tree import download, upload
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder


def greedy_search(
    decoder: TreeDecoder,
    rule: AcceptanceRule,
    constraints: Constraints,
    proposer: Proposer | None = None,
    shape: DraftShape = NO_DRAFTS,
) -> Search:
    """Return a greedy search; ``rule`` accepts drafts. Depth 0 needs no proposer."""
    strategy = GreedyStrategy(rule, constraints, decoder.best_tokens)
    return Search(decoder, StepPlanner(strategy, proposer, shape))


def sampling_search(
    decoder: TreeDecoder, constraints: Constraints, temperature: float, seed: int = 0
) -> Search:
    """Return a search that samples each token; arguments as in ``SamplingStrategy``."""
    strategy = SamplingStrategy(constraints, temperature, seed)
    return Search(decoder, StepPlanner(strategy, None, NO_DRAFTS))


@dataclass
class GreedyState(SearchState):
    """An utterance during greedy search; ``running`` has one hypothesis."""

    eos: int = -1  # end symbol
    ended: bool = False  # whether the end symbol was decoded; False at the maximum length
    generator: np.random.Generator | None = None  # sampling: random numbers of the utterance
    ctc_tokens: Sequence[int] = ()  # CTC first: tokens to verify in the first call

    @property
    def hypothesis(self) -> Hypothesis:
        return self.running[0]

    @property
    def n_best(self) -> list[EndedHypothesis]:
        tokens, hypothesis = [*self.tokens, self.eos], self.hypothesis
        length = self.prompt_length + len(tokens)
        return [EndedHypothesis(tokens, hypothesis.score, hypothesis.parts, length)]

    @property
    def done(self) -> bool:
        return self.ended or self.hypothesis.prefix.length >= self.max_length

    @property
    def tokens(self) -> list[int]:
        """Tokens after the prompt, without the end symbol."""
        tokens = self.hypothesis.prefix.tokens()
        return tokens[:-1] if self.ended else tokens

    def write(self, prefix: Prefix, *log_probs: float) -> None:
        """Append the last tokens of a prefix, one for each log-probability."""
        score = self.hypothesis.score
        for log_prob in log_probs:
            score += log_prob
        self.running = [Hypothesis(prefix, score, (score,))]
        self.ended = prefix.token == self.eos
        self.steps += len(log_probs)
        if not self.ended and self.gives_up(prefix):
            self.max_length = prefix.length


class GreedyStrategy(Strategy):
    """Greedy search with an acceptance rule; ``best_tokens`` is ``TreeDecoder.best_tokens``."""

    best_first = True

    def __init__(
        self,
        rule: AcceptanceRule,
        constraints: Constraints,
        best_tokens: Callable[[torch.Tensor, Restriction | None], BestTokens] = best_tokens,
    ):
        weights = {DECODER: 1.0}
        super().__init__(Scoring(weights, constraints.eos, constraints, constrain_logits=True), 1)
        self.rule, self.best_tokens = rule, best_tokens
        self.needs_draft_scores = not rule.verifies
        self.drafts_change_text = not rule.best_only
        self.follows_best_tokens = type(self) is GreedyStrategy and rule.best_only

    def begin(self, encoder_out, prompt, max_length, limits) -> GreedyState:
        root = Prefix(int(prompt[-1]))
        return GreedyState(
            root,
            UtteranceScorers(min_length=limits.least(len(encoder_out))),
            max_length,
            [Hypothesis(root, 0.0, (0.0,))],
            prompt_length=len(prompt),
            eos=self.scoring.eos,
        )

    def rule_of(self, states: Sequence[GreedyState]) -> AcceptanceRule:
        """Return the rule for the drafts of the last decoder call."""
        return self.rule

    def store_results(self, states, requests: Sequence[Request], logits: torch.Tensor) -> None:
        """Store each new prefix's best token and, for rules other than exact, accepted drafts.

        With exact acceptance, ``advance`` follows the best tokens through the tree.
        """
        rule = self.rule_of(states)
        prefixes = [prefix for request in requests for prefix in request.prefixes]
        restriction = self.scoring.restrict(requests, logits)
        best, normalizers, log_probs = self.best_tokens(logits, restriction)
        set_best(prefixes, best, log_probs)
        if rule.verifies and not rule.best_only:
            rows = {prefix: row for row, prefix in enumerate(prefixes)}
            drafts = [*prefixes, *(end for state in states for end in state.draft.ends)]
            drafts = [prefix for prefix in drafts if prefix.parent in rows]
            if drafts:
                verify(drafts, rows, rule, logits, restriction, normalizers)

    def advance(self, states: Sequence[GreedyState]) -> None:
        for state in states:
            while not state.done and state.hypothesis.prefix.evaluated:
                for prefix in longest_accepted(state.hypothesis.prefix):
                    if not state.done:
                        state.write(prefix, prefix.accepted_log_prob)
                if not state.done:
                    token, log_prob = state.hypothesis.prefix.best
                    state.write(state.hypothesis.prefix.child(token), log_prob)

    def accept_unverified(self, states: Sequence[GreedyState]) -> None:
        """Append drafts up to the first one with a probability below the threshold."""
        if self.rule.verifies:
            return
        for state in states:
            drafted = [*(state.draft.nodes | state.draft.ends).items()]
            total, nodes, steps = drafted[0][1], dict(drafted[:1]), state.steps
            for prefix, score in drafted[1:]:
                dropped = prefix.parent not in nodes  # by ``draft_budget``
                if dropped or not self.rule.accepts_draft(torch.tensor(score - total)):
                    break
                state.write(prefix, score - total)
                total = nodes[prefix] = score
            state.statistics.count_drafts(state.draft.depth, state.steps - steps)
            state.draft = Draft([], nodes, unqueried={*[*nodes][:-1]})

    def finish(self, state: GreedyState) -> None:
        check_numbers([state.hypothesis.score])
        state.statistics.tokens = state.steps


class SamplingStrategy(GreedyStrategy):
    """Greedy search with sampled tokens; scores are log-probabilities at temperature 1.

    Logits are divided by ``temperature``, above 0. Each utterance has its own random numbers, from
    the same ``seed``, so batching does not change its result.
    """

    def __init__(self, constraints: Constraints, temperature: float, seed: int):
        super().__init__(AcceptanceRule(exact, best_only=True), constraints)
        self.temperature, self.seed = temperature, seed

    def begin(self, encoder_out, prompt, max_length, limits) -> GreedyState:
        state = super().begin(encoder_out, prompt, max_length, limits)
        state.generator = np.random.default_rng(self.seed)
        return state

    def store_results(self, states, requests: Sequence[Request], logits: torch.Tensor) -> None:
        logits = self.scoring.constrain(requests, logits).float()
        # Gumbel-max: the argmax of scores with Gumbel noise is a sample from their softmax.
        # NumPy's generator is three times faster than PyTorch's.
        noise = [
            np.log(state.generator.standard_exponential(logits.size(1)))
            for state, request in zip(states, requests, strict=True)
            for _ in request.prefixes
        ]
        noise = torch.from_numpy(np.stack(noise)).to(logits)
        tokens = (logits / self.temperature - noise).argmax(dim=-1, keepdim=True)
        log_probs = logits.log_softmax(dim=-1).gather(1, tokens)
        prefixes = [prefix for request in requests for prefix in request.prefixes]
        set_best(prefixes, tokens[:, 0], log_probs[:, 0])


def set_best(prefixes: Sequence[Prefix], tokens: torch.Tensor, log_probs: torch.Tensor) -> None:
    """Store the best next token (R,) of each prefix and its log-probability (R,)."""
    for prefix, token, log_prob in zip(prefixes, *download(tokens, log_probs), strict=True):
        prefix.best = (int(token), log_prob)


def verify(
    drafts: Sequence[Prefix],
    rows: Mapping[Prefix, int],
    rule: AcceptanceRule,
    logits: torch.Tensor,
    restriction: Restriction | None,
    normalizers: torch.Tensor,
) -> None:
    """Store which drafts the rule accepts; a rejected draft also rejects all drafts after it.

    Args:
        drafts: One or more prefixes whose parents have rows.
        rows: Rows of the evaluated prefixes, whose best tokens are stored.
        rule: A rule that verifies.
        logits: (R, V).
        restriction: Forbidden tokens of the rows; None: all are allowed.
        normalizers: (R,) as in ``BestTokens``.
    """

    def decide(drafts: Sequence[Prefix]) -> dict[Prefix, tuple[float, float]]:
        pairs = [(rows[prefix.parent], prefix.token) for prefix in drafts]
        parents, tokens = upload(pairs, logits.device, torch.long).unbind(1)
        scores = of_rows = logits[parents]
        if restriction is not None:
            scores = restriction.select(parents).apply(of_rows, torch.float32)
            of_rows = scores if restriction.renormalize else of_rows
        allowed = rule.allowed(scores, tokens)
        log_probs = of_rows.gather(1, tokens[:, None])[:, 0].float() - normalizers[parents]
        pairs = zip(*download(allowed, log_probs), strict=True)
        return dict(zip(drafts, pairs, strict=True))

    def decide_level(drafts: Sequence[Prefix]) -> dict[Prefix, tuple[float, float]]:
        best = {prefix: prefix.parent.best for prefix in drafts if rule.accepts_best}
        known = {
            prefix: (1.0, log_prob)
            for prefix, (token, log_prob) in best.items()
            if prefix.token == token and log_prob > -math.inf
        }
        others = [prefix for prefix in drafts if prefix not in known]
        return known | decide(others) if others else known

    following = defaultdict(list)
    for prefix in drafts:
        following[prefix.parent].append(prefix)
    # A GPU decides on all drafts at once, because the host waits for its results.
    every = decide(drafts) if logits.device.type == "cuda" else None
    first = following.keys() - {*drafts}
    level = [prefix for prefix in drafts if prefix.parent in first]
    while level:
        verdicts, accepted = every or decide_level(level), []
        for prefix in level:
            allowed, log_prob = verdicts[prefix]
            if allowed:
                prefix.accepted_log_prob = log_prob
                accepted.append(prefix)
        level = [child for prefix in accepted for child in following[prefix]]


def longest_accepted(prefix: Prefix) -> list[Prefix]:
    """Return the longest path of accepted drafts; of equally long ones the most probable."""
    reached = [prefix]
    for here in reached:  # the list grows during the loop
        reached += [
            child for child in here.children.values() if child.accepted_log_prob is not None
        ]
    # Number and log-probability of the best path's drafts after a prefix, and its first draft.
    best: dict[Prefix, tuple[int, float, Prefix | None]] = {}
    for here in reversed(reached):
        paths = [(0, 0.0, None)]
        for child in here.children.values():
            if child.accepted_log_prob is not None:
                length, log_prob, _ = best[child]
                paths.append((length + 1, log_prob + child.accepted_log_prob, child))
        best[here] = max(paths, key=lambda path: path[:2])
    path = []
    while (prefix := best[prefix][2]) is not None:
        path.append(prefix)
    return path
