"""Greedy search with an acceptance rule: down the evaluated tree as far as drafts stand.

With the exact rule the text is that of plain greedy search, whatever was drafted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from espnet_medusa.search.acceptance import AcceptanceRule
from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.ahead.shape import PLAIN, DraftShape
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.scores import DECODER, Request, Scoring, UtteranceScorers
from espnet_medusa.search.search import Search
from espnet_medusa.search.state import Draft, EndedHypothesis, Hypothesis, SearchState, Strategy
from espnet_medusa.tree.best_token import BestTokens, Restriction
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import Proposer
from espnet_medusa.tree.tree_decoder import TreeDecoder
from espnet_medusa.tree.upload import upload

BEST, ALLOWED = "best", "allowed"


class GreedySearch(Search):
    """Several tokens per decoder call; without drafts it is plain greedy search.

    Args:
        decoder: Evaluates nodes.
        rule: Says which drafts stand.
        proposer: Drafts; None with ``shape.depth`` 0.
        shape: How far and how wide to draft.
        constraints: Which tokens may come where.
    """

    def __init__(
        self,
        decoder: TreeDecoder,
        rule: AcceptanceRule,
        constraints: Constraints,
        proposer: Proposer | None = None,
        shape: DraftShape = PLAIN,
    ):
        scoring = Scoring({DECODER: 1.0}, constraints.eos, constraints, constrain_logits=True)
        strategy = GreedyStrategy(scoring, rule, decoder.best_tokens, shape.width)
        super().__init__(decoder, RunAhead(strategy, proposer, shape))

    def _begin(
        self, memory: torch.Tensor, prompt: torch.Tensor, limits: LengthLimits
    ) -> "GreedyState":
        frames, root = len(memory), Prefix(int(prompt[-1]))
        return GreedyState(
            root,
            UtteranceScorers(min_length=limits.least(frames)),
            self._most_tokens(frames, len(prompt), limits),
            [Hypothesis(root, 0.0, (0.0,))],
            prompt_length=len(prompt),
            eos=self.strategy.scoring.eos,
        )

    def _finish(self, state: "GreedyState") -> None:
        state.statistics.tokens = state.steps


@dataclass
class GreedyState(SearchState):
    """An utterance under greedy search; ``running`` is its one hypothesis.

    Attributes:
        eos: End symbol.
        ended: Whether the end symbol was decoded; False at maximum length.
    """

    eos: int = -1
    ended: bool = False

    @property
    def hypothesis(self) -> Hypothesis:
        """What is decided so far."""
        return self.running[0]

    @property
    def n_best(self) -> list[EndedHypothesis]:
        tokens, found = [*self.tokens, self.eos], self.hypothesis
        length = self.prompt_length + len(tokens)
        return [EndedHypothesis(tokens, found.score, found.parts, length)]

    @property
    def done(self) -> bool:
        return self.ended or self.hypothesis.prefix.length >= self.max_length

    @property
    def tokens(self) -> list[int]:
        """Behind the prompt, without the end symbol."""
        tokens = self.hypothesis.prefix.tokens()
        return tokens[:-1] if self.ended else tokens

    def write(self, prefix: Prefix, log_prob: float) -> None:
        """Decide one token."""
        score = self.hypothesis.score + log_prob
        self.running = [Hypothesis(prefix, score, (score,))]
        self.ended = prefix.token == self.eos
        self.steps += 1


class GreedyStrategy(Strategy):
    """Greedy search.

    Args:
        scoring: The decoder alone, and constraints.
        rule: Which drafts stand.
        best_tokens: The decoder's.
        draft_width: Candidates kept for a drafted tree of this width.
    """

    best_first = True

    def __init__(
        self,
        scoring: Scoring,
        rule: AcceptanceRule,
        best_tokens: Callable[[torch.Tensor, Restriction | None], BestTokens],
        draft_width: int = 1,
    ):
        super().__init__(scoring, draft_width)
        self.rule, self.best_tokens = rule, best_tokens
        self.needs_draft_scores = not rule.verifies

    def rule_of(self, states: Sequence[GreedyState]) -> AcceptanceRule:
        """The rule of the call that these states have just had, which all have together."""
        return self.rule

    def judge(self, states: Sequence[GreedyState], logits: torch.Tensor) -> None:
        """What the base head says of new prefixes: its best token, and which drafts it allows."""
        rule = self.rule_of(states)
        requests = [Request(state.scorers, state.draft.asked) for state in states]
        prefixes = [prefix for request in requests for prefix in request.prefixes]
        if self.scoring.constraints.logits_first:
            logits, restriction = self.scoring.constrain(requests, logits), None
        else:
            restriction = self.scoring.restrict(requests, logits)
        rows = {prefix: row for row, prefix in enumerate(prefixes)}
        drafts = [*prefixes, *(end for state in states for end in state.draft.ends)]
        drafts = [prefix for prefix in drafts if prefix.parent in rows and rule.verifies]
        pairs = [(rows[prefix.parent], prefix.token) for prefix in drafts]
        parents, tokens = upload(pairs, logits.device, torch.long).view(-1, 2).unbind(1)
        # One read: best tokens and verdicts, with their log-probabilities.
        best, normalizers = self.best_tokens(logits, restriction)
        of, chosen = torch.arange(len(prefixes), device=logits.device), best
        verdicts = torch.ones_like(best)
        if drafts:
            if rule.best_only:
                allowed = best[parents] == tokens
            else:
                scores = logits if restriction is None else restriction.apply(logits.float())
                allowed = rule.allowed(scores[parents], tokens)
            of, chosen = torch.cat([of, parents]), torch.cat([chosen, tokens])
            verdicts = torch.cat([verdicts, allowed.long()])
        log_probs = logits[of, chosen].float() - normalizers[of]
        table = torch.stack([chosen.double(), log_probs.double(), verdicts.double()], 1).tolist()
        for prefix, (token, log_prob, _) in zip(prefixes, table, strict=False):
            prefix.memo[BEST] = (int(token), log_prob)
        reached = {state.hypothesis.prefix for state in states}
        for prefix, (_, log_prob, stands) in zip(drafts, table[len(prefixes) :], strict=True):
            if stands and (prefix.parent in reached or not rule.prefix_only):
                prefix.memo[ALLOWED] = log_prob
                reached.add(prefix)

    def advance(self, states: Sequence[GreedyState]) -> None:
        for state in states:
            while not state.done and state.hypothesis.prefix.evaluated:
                for prefix in longest_allowed(state.hypothesis.prefix):
                    state.write(prefix, prefix.memo[ALLOWED])
                if not state.done:
                    token, log_prob = state.hypothesis.prefix.memo[BEST]
                    state.write(state.hypothesis.prefix.child(token), log_prob)

    def accept_unverified(self, states: Sequence[GreedyState]) -> None:
        """Write the drafts that the proposer itself is sure of, drop the others."""
        if self.rule.verifies:
            return
        for state in states:
            drafted = [*(state.draft.nodes | state.draft.ends).items()]
            sofar, nodes, steps = drafted[0][1], dict(drafted[:1]), state.steps
            for prefix, score in drafted[1:]:
                if not self.rule.accepts_draft(torch.tensor(score - sofar)):
                    break
                state.write(prefix, score - sofar)
                sofar = nodes[prefix] = score
            state.statistics.count_drafts(state.draft.depth, state.steps - steps)
            state.draft = Draft([], nodes, silent={*[*nodes][:-1]})


def longest_allowed(prefix: Prefix) -> list[Prefix]:
    """The longest path of allowed drafts below ``prefix``; of several, the most probable."""

    def best(here: Prefix) -> tuple[int, float, list[Prefix]]:
        paths = [(0, 0.0, [])]
        for child in here.children.values():
            if ALLOWED in child.memo:
                length, log_prob, path = best(child)
                paths.append((length + 1, log_prob + child.memo[ALLOWED], [child, *path]))
        return max(paths, key=lambda found: found[:2])

    return best(prefix)[2]
