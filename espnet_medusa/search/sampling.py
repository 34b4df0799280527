"""Sampling at a temperature, without drafts."""

from collections.abc import Sequence

import torch

from espnet_medusa.search.acceptance import AcceptanceRule, exact
from espnet_medusa.search.ahead.lookahead import PLAIN
from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.greedy import GreedyState, GreedyStrategy
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.scores import Request
from espnet_medusa.search.search import Search
from espnet_medusa.tree.tree_decoder import TreeDecoder


def sampling_search(
    decoder: TreeDecoder, constraints: Constraints, temperature: float, seed: int = 0
) -> Search:
    """Return a search that samples each token; arguments as in ``SamplingStrategy``."""
    return Search(decoder, RunAhead(SamplingStrategy(constraints, temperature, seed), None, PLAIN))


class SamplingStrategy(GreedyStrategy):
    """Greedy search with sampled tokens; scores are log-probabilities at temperature 1.

    Each utterance has its own random numbers, so batching does not change its result.

    Args:
        constraints: Allowed tokens.
        temperature: Above 0; logits are divided by it.
        seed: Random seed of each utterance.
    """

    def __init__(self, constraints: Constraints, temperature: float, seed: int):
        super().__init__(AcceptanceRule(exact, best_only=True), constraints)
        self.temperature, self.seed = temperature, seed

    def begin(
        self, memory: torch.Tensor, prompt: torch.Tensor, max_length: int, limits: LengthLimits
    ) -> GreedyState:
        state = super().begin(memory, prompt, max_length, limits)
        state.generator = torch.Generator().manual_seed(self.seed)
        return state

    def judge(self, states: Sequence[GreedyState], logits: torch.Tensor) -> None:
        requests = [Request(state.scorers, state.draft.queried) for state in states]
        logits = self.scoring.constrain(requests, logits).float()
        # Gumbel-max: the argmax of scores with Gumbel noise is a sample from their softmax.
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
            prefix.best = (int(token), log_prob)
