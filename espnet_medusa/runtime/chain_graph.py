"""Attending heads on a GPU: a chain of drafts is one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from espnet_medusa.model.heads import AttendingHeads
from espnet_medusa.runtime.graph import GraphMemory, Replayed
from espnet_medusa.runtime.heads import PackedAttendingHeads, PackedCrossKeysValues
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.tree.proposer import MISSING
from espnet_medusa.tree.token_tree import upload


@dataclass
class CapturedChain:
    """A chain of one row per utterance, also of those without a draft."""

    states: torch.Tensor  # (U, D)
    embedded: torch.Tensor | None  # (U, D)
    depth: int
    replayed: Replayed


@dataclass
class ChainGraphs:
    """The graphs of chains that attend to memory with a fixed address."""

    memory: GraphMemory
    # By heads, and by whether the first token is given.
    captured: dict[tuple[GraphAttendingHeads, bool], CapturedChain] = field(default_factory=dict)


class GraphAttendingHeads(PackedAttendingHeads):
    """Attending heads whose chains are CUDA graphs with few operations per token.

    Of the layer that fuses state and token, the token's part is a table, and the state's part
    includes the residual.

    Args:
        projection: (R, D) to (R, V').
        embeddings: (V', D), of the tokens of ``projection``.
    """

    has_chain = True

    def __init__(
        self,
        heads: AttendingHeads,
        precision: Precision,
        projection: Callable[[torch.Tensor], torch.Tensor],
        embeddings: torch.Tensor,
    ):
        super().__init__(heads, precision)
        self.projection = projection
        with torch.no_grad():
            of_state, of_token = heads.fuse.weight.chunk(2, dim=1)
            of_state = of_state + torch.eye(len(of_state), device=of_state.device)
            self.of_state = of_state.t().to(precision.dtype)
            embeddings = heads.token_norm(embeddings.to(of_token.dtype))
            of_tokens = torch.nn.functional.linear(embeddings, of_token, heads.fuse.bias)
            self.of_tokens = of_tokens.to(precision.dtype)  # (V', D)

    def chain(
        self, states, cross_keys_values, utterances, depth, min_log_prob, embedded=None
    ) -> torch.Tensor | None:
        """Return None without a fixed address, or for several rows of one utterance."""
        graphs = cross_keys_values.chains
        if graphs is None or len({*utterances}) < len(utterances):
            return None
        chain = graphs.captured.get((self, embedded is None))
        if chain is None or chain.depth < depth:
            fixed = [
                part if part is None else part.new_zeros(cross_keys_values.utterances, part.size(1))
                for part in (states, embedded)
            ]
            chain = CapturedChain(*fixed, depth, Replayed(graphs.memory, states.device))
            graphs.captured[self, embedded is None] = chain
        every = [*utterances] == [*range(cross_keys_values.utterances)]
        rows = slice(None) if every else upload(utterances, states.device)
        chain.states[rows] = states
        if embedded is not None:
            chain.embedded[rows] = embedded
        columns, log_probs = chain.replayed.run(lambda: self._best(chain, cross_keys_values))
        improbable = log_probs[rows, :depth].cumsum(dim=1) < min_log_prob
        return columns[rows, :depth].masked_fill(improbable, MISSING)

    def _best(
        self, chain: CapturedChain, cross_keys_values: PackedCrossKeysValues
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best columns and their log-probabilities, (U, depth)."""
        of_rows = cross_keys_values, range(cross_keys_values.utterances)
        states = chain.states
        if chain.embedded is not None:
            states = self.advance(states, chain.embedded, *of_rows)
        columns, log_probs = [], []
        for step in range(chain.depth):
            if step:
                hidden = self.of_tokens[columns[-1]]
                hidden.addmm_(self.state_norm(states), self.of_state)
                states = self.attend(hidden, *of_rows)
            scores = self.projection(self.output(states))
            best, column = scores.log_softmax(dim=-1, dtype=torch.float32).max(dim=-1)
            columns.append(column)
            log_probs.append(best)
        return torch.stack(columns, dim=1), torch.stack(log_probs, dim=1)
