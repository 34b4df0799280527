"""Sampling at a temperature, a token a call: what is drawn at random cannot be drafted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from espnet_medusa.search.acceptance import AcceptanceRule, exact
from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.ahead.shape import PLAIN
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.greedy import BEST, GreedySearch, GreedyState, GreedyStrategy
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.scores import Request
from espnet_medusa.search.state import specialize
from espnet_medusa.tree.tree_decoder import TreeDecoder


class SamplingSearch(GreedySearch):
    """Draws each token from what the constraints leave; scores are those at temperature 1.

    Each utterance draws for itself: in a batch it gets what it would get alone.

    Args:
        decoder: Evaluates nodes.
        constraints: Which tokens may come where.
        temperature: Above 0; logits are divided by it.
        seed: Of what is drawn for every utterance.
    """

    def __init__(
        self, decoder: TreeDecoder, constraints: Constraints, temperature: float, seed: int = 0
    ):
        super().__init__(decoder, AcceptanceRule(exact, best_only=True), constraints)
        strategy = self.strategy
        parts = strategy.scoring, strategy.rule, strategy.best_tokens
        self.drafter = RunAhead(SamplingStrategy(*parts, temperature=temperature), None, PLAIN)
        self.seed = seed

    def _begin(
        self, memory: torch.Tensor, prompt: torch.Tensor, limits: LengthLimits
    ) -> "SampledState":
        state = super()._begin(memory, prompt, limits)
        return specialize(state, SampledState, generator=torch.Generator().manual_seed(self.seed))


@dataclass
class SampledState(GreedyState):
    """An utterance whose tokens are drawn; ``generator`` draws them."""

    generator: torch.Generator = field(default_factory=torch.Generator)


class SamplingStrategy(GreedyStrategy):
    """Greedy search whose best token is the one drawn.

    Args:
        parts: As ``GreedyStrategy``'s.
        temperature: Above 0.
    """

    def __init__(self, *parts, temperature: float):
        super().__init__(*parts)
        self.temperature = temperature

    def judge(self, states: Sequence[SampledState], logits: torch.Tensor) -> None:
        requests = [Request(state.scorers, state.draft.asked) for state in states]
        logits = self.scoring.constrain(requests, logits).float()
        # The largest of scores with Gumbel noise is a draw from their softmax.
        noise = torch.stack(
            [
                torch.empty(logits.size(1)).exponential_(generator=state.generator).log()
                for state, request in zip(states, requests, strict=True)
                for _ in request.prefixes
            ]
        )
        tokens = (logits / self.temperature - noise.to(logits.device)).argmax(dim=-1, keepdim=True)
        log_probs = logits.log_softmax(dim=-1).gather(1, tokens)
        prefixes = [prefix for request in requests for prefix in request.prefixes]
        table = torch.cat([tokens.double(), log_probs.double()], dim=1).tolist()
        for prefix, (token, log_prob) in zip(prefixes, table, strict=True):
            prefix.memo[BEST] = (int(token), log_prob)
