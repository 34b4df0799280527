"""Attending heads on a GPU: a CUDA graph drafts ``STEPS`` tokens of each chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from espnet_medusa.decoding.runtime.graph import GraphMemory, Replayed
from espnet_medusa.decoding.runtime.heads import PackedAttendingHeads, PackedCrossKeysValues
from espnet_medusa.decoding.runtime.linear import pack_linear
from espnet_medusa.decoding.runtime.precision import Precision
from espnet_medusa.decoding.tree.proposer import MISSING
from espnet_medusa.decoding.tree.token_tree import upload
from espnet_medusa.networks.heads import AttendingHeads

STEPS = 4  # tokens per graph; then the host reads whether a chain goes on


@dataclass
class Link:
    """A graph that drafts ``STEPS`` tokens for U utterances; rows without a draft are ignored."""

    states: torch.Tensor  # (U, D)
    # (U, D) embedding of the next token, or (U,) its column of the logits; None: no token.
    following: torch.Tensor | None
    replayed: Replayed

    def write(self, rows: Any, states: torch.Tensor, following: torch.Tensor | None) -> None:
        self.states[rows] = states
        if following is not None:
            self.following[rows] = following


@dataclass
class ChainGraphs:
    """The graphs of chains that attend to memory with a fixed address."""

    memory: GraphMemory
    links: dict[tuple[GraphAttendingHeads, Any], Link] = field(default_factory=dict)


class GraphAttendingHeads(PackedAttendingHeads):
    """Attending heads whose chains are CUDA graphs with few operations per token.

    The layer that fuses state and token is split. A matrix, residual included, has its result for
    the state, and a table that for each token.

    Args:
        projection: (R, D) to (R, V').
        embed: Returns the embeddings (V', D) of the tokens of ``projection``.
        vocabulary: (V',) these tokens; None: all.
    """

    has_chain = True

    def __init__(
        self,
        heads: AttendingHeads,
        precision: Precision,
        projection: Callable[[torch.Tensor], torch.Tensor],
        embed: Callable[[], torch.Tensor],
        vocabulary: torch.Tensor | None,
    ):
        super().__init__(heads, precision)
        self.projection, self.embed, self.vocabulary = projection, embed, vocabulary
        of_state, of_token = heads.fuse.weight.detach().chunk(2, dim=1)
        of_state = of_state + torch.eye(len(of_state), device=of_state.device)
        self.of_state = of_state.t().to(precision.dtype)
        self.of_token = pack_linear(of_token, heads.fuse.bias, precision)

    @cached_property
    def of_tokens(self) -> torch.Tensor:
        """(V', D); computed for the first chain, because beam search has none."""
        return self.of_token(self.token_norm(self.embed()))

    def chain(
        self, states, cross_keys_values, utterances, depth, min_log_prob, embedded=None
    ) -> torch.Tensor | None:
        """As in ``PackedAttendingHeads``; return None if an utterance has several rows."""
        if len({*utterances}) < len(utterances):
            return None
        _ = self.of_tokens  # before a capture
        with cross_keys_values.chains.memory.lock:  # until the outputs of the last graph are read
            rows = self._draft(states, embedded, cross_keys_values, utterances, depth, min_log_prob)
        return torch.tensor([row[:depth] + [MISSING] * (depth - len(row)) for row in rows])

    def _draft(
        self, states, embedded, cross_keys_values, utterances, depth, min_log_prob
    ) -> list[list[int]]:
        """Return ``depth`` or more tokens of each chain, fewer if all have ended."""
        graphs, count = cross_keys_values.chains, cross_keys_values.utterances
        of_rows = cross_keys_values, range(count)
        every = [*utterances] == [*range(count)]
        link = self._link(graphs, states, embedded, count)
        link.write(slice(None) if every else upload(utterances, states.device), states, embedded)
        drafts = [[] for _ in utterances]
        totals = [0.0] * len(drafts)
        while True:
            table, states, columns = link.replayed.run(partial(self._steps, link, of_rows))
            tokens, log_probs = table.tolist()
            for row, utterance in enumerate(utterances):
                for token, log_prob in zip(tokens[utterance], log_probs[utterance], strict=True):
                    totals[row] += log_prob
                    drafts[row].append(int(token) if totals[row] >= min_log_prob else MISSING)
            if len(drafts[0]) >= depth or all(total < min_log_prob for total in totals):
                return drafts
            link = self._link(graphs, states, columns, count)
            link.write(slice(None), states, columns)

    def _link(
        self, graphs: ChainGraphs, states: torch.Tensor, following: torch.Tensor | None, count: int
    ) -> Link:
        key = self, None if following is None else following.dim()
        if key not in graphs.links:
            fixed = [
                part if part is None else part.new_zeros(count, *part.shape[1:])
                for part in (states, following)
            ]
            graphs.links[key] = Link(*fixed, Replayed(graphs.memory, states.device))
        return graphs.links[key]

    def _steps(
        self, link: Link, of_rows: tuple[PackedCrossKeysValues, Sequence[int]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return tokens and log-probabilities (2, U, STEPS), last states and last columns."""
        drafted, log_probs, states = self.draft(link.states, link.following, *of_rows, STEPS)
        table = torch.stack([self._tokens(drafted).double(), log_probs.double()])
        return table, states, drafted[:, -1]

    def draft(
        self,
        states: torch.Tensor,
        following: torch.Tensor | None,
        cross_keys_values: PackedCrossKeysValues,
        utterances: Sequence[int],
        steps: int,
        scored: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Return columns, log-probabilities (U, steps) if ``scored``, and the last states.

        States and ``following`` are as in ``Link``.
        """
        columns, log_probs, of_rows = [], [], (cross_keys_values, utterances)
        for _ in range(steps):
            if following is not None and following.dim() == 1:
                hidden = self.of_tokens[following]
                hidden.addmm_(self.state_norm(states), self.of_state)
                states = self.attend(hidden, *of_rows)
            elif following is not None:
                states = self.advance(states, following, *of_rows)
            scores = self.projection(self.output(states))
            if scored:
                scores = scores.log_softmax(dim=-1, dtype=torch.float32)
            best, following = scores.max(dim=-1)
            columns.append(following)
            log_probs.append(best)
        log_probs = torch.stack(log_probs, dim=1) if scored else None
        return torch.stack(columns, dim=1), log_probs, states

    def draft_tokens(
        self,
        states: torch.Tensor,
        embedded: torch.Tensor,
        cross_keys_values: PackedCrossKeysValues,
        steps: int,
        min_log_prob: float,
    ) -> torch.Tensor:
        """Return the chain (U, steps) after tokens with embeddings (U, D), on the device."""
        of_rows = cross_keys_values, range(len(states))
        scored = min_log_prob > -math.inf
        columns, log_probs, _ = self.draft(states, embedded, *of_rows, steps, scored)
        tokens = self._tokens(columns)
        if not scored:
            return tokens
        return tokens.masked_fill(log_probs.double().cumsum(dim=1) < min_log_prob, MISSING)

    def _tokens(self, columns: torch.Tensor) -> torch.Tensor:
        return columns if self.vocabulary is None else self.vocabulary[columns]
