"""The loop of every search: draft, one decoder call for all utterances, state on, forget.

Utterances advance at their own pace and leave when they are done; nobody waits for the slowest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import torch

from espnet_medusa.search.state import SearchState, Strategy
from espnet_medusa.tree.placement import Placement, compact
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftInput
from espnet_medusa.tree.tree_decoder import TreeDecoder, TreeState
from espnet_medusa.tree.upload import upload


class Drafter(Protocol):
    """Says what the next decoder call evaluates.

    Attributes:
        strategy: How states go on.
        needs_head_input: Whether it drafts from what the decoder computes for heads.
    """

    strategy: Strategy
    needs_head_input: bool

    def begin(
        self,
        states: Sequence[SearchState],
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        draft_inputs: Sequence[DraftInput],
        cross_keys_values: Any,
    ) -> Drafter:
        """What drafts for these utterances; arguments as ``Proposer.begin``'s."""

    def draft_prompt(self, states: Sequence[SearchState]) -> None:
        """Set each state's first ``draft``: its prompt and what may follow it."""

    def draft(self, states: Sequence[SearchState]) -> None:
        """Set each state's ``draft``: its unevaluated hypotheses and what may follow them."""


class Row(Placement):
    """A state and its places in the token tree.

    Args:
        state: The utterance.
        prompt: Its prompt tokens.
    """

    def __init__(self, state: SearchState, prompt: list[int]):
        super().__init__(prompt)
        self.state = state


def run(
    decoder: TreeDecoder,
    drafter: Drafter,
    states: Sequence[SearchState],
    memory: torch.Tensor,
    memory_lengths: torch.Tensor,
    prompt: Sequence[torch.Tensor] | torch.Tensor,
    draft_inputs: Sequence[DraftInput] | None = None,
) -> None:
    """SearchState until everybody is done.

    Args:
        decoder: Evaluates nodes.
        drafter: Drafts, and knows the strategy by which states go on.
        states: U, at their roots.
        memory: (U, S, D) encoder output.
        memory_lengths: (U,) frames.
        prompt: U times (P,) tokens to start from.
        draft_inputs: U, what a draft model reads; None: the same.
    """
    strategy, started = drafter.strategy, time.perf_counter()
    prompts, frames = [row.tolist() for row in prompt], memory_lengths.tolist()
    if draft_inputs is None:
        parts = zip(memory, frames, prompts, strict=True)
        draft_inputs = [DraftInput(row[:length], tokens) for row, length, tokens in parts]
    tree_state = decoder.start(memory, memory_lengths, with_heads=drafter.needs_head_input)
    share_seconds(states, started)
    started = time.perf_counter()
    drafter = drafter.begin(
        states, memory, memory_lengths, draft_inputs, tree_state.cross_keys_values
    )
    drafter.draft_prompt(states)
    share_seconds(states, started, drafting=True)
    rows = [Row(state, tokens) for state, tokens in zip(states, prompts, strict=True)]
    while rows:
        started, states = time.perf_counter(), [row.state for row in rows]
        _evaluate(decoder, tree_state, rows, strategy)
        before = [state.steps for state in states]
        strategy.advance(states)
        for state, steps in zip(states, before, strict=True):
            depth, accepted = state.draft.depth, max(state.steps - steps - 1, 0)
            state.draft.accepted = min(accepted, depth)
            state.statistics.count_drafts(depth, accepted)
        rows = _leave(decoder, tree_state, rows)
        if rows:
            compact(decoder, tree_state, rows, _running(rows))
        share_seconds(states, started)
        if rows:
            started, states = time.perf_counter(), [row.state for row in rows]
            drafter.draft(states)
            strategy.accept_unverified(states)
            rows = _leave(decoder, tree_state, rows)
            share_seconds(states, started, drafting=True)


def share_seconds(states: Sequence[SearchState], started: float, drafting: bool = False) -> None:
    """Seconds since then, evenly among those present."""
    seconds = (time.perf_counter() - started) / len(states)
    for state in states:
        state.statistics.decoder_seconds += seconds
        if drafting:
            state.statistics.draft_seconds += seconds


def _evaluate(
    decoder: TreeDecoder, tree_state: TreeState, rows: Sequence[Row], strategy: Strategy
) -> None:
    """One decoder call for the drafts of all rows, and what it says of them."""
    first = tree_state.num_nodes
    tokens, parents = zip(*(row.place(row.state.draft.nodes) for row in rows), strict=True)
    outputs = decoder.extend(tree_state, tokens, parents)
    placed = [prefix for row in rows for prefix in row.slots[first:]]
    for row, new in zip(rows, tokens, strict=True):
        row.state.statistics.decoder_calls += 1
        row.state.statistics.nodes += len(new)
        row.fill(tree_state.num_nodes)
    hidden = outputs.hidden
    if first == 0:
        _watch(decoder, rows, [*map(len, tokens)], hidden)
    asked = {prefix for row in rows for prefix in row.state.draft.asked}
    if len(asked) < len(placed):  # of the prompt only what follows it counts
        places = [place for place, prefix in enumerate(placed) if prefix in asked]
        hidden = hidden[upload(places, hidden.device, torch.long)]
    for place, prefix in enumerate(placed):
        if prefix is not None:
            prefix.head_input = (outputs.head_input, place)
    strategy.judge([row.state for row in rows], decoder.logits(hidden))


def _watch(
    decoder: TreeDecoder, rows: Sequence[Row], sizes: Sequence[int], hidden: torch.Tensor
) -> None:
    """Note what is watched in the prompts.

    Args:
        decoder: Has evaluated them.
        rows: U.
        sizes: U, how many nodes of each there are, its prompt's the first.
        hidden: (R, D) of these nodes, row by row.
    """
    places = [
        (row.state.watched, before + row.state.watched.place)
        for row, before in zip(rows, accumulate(sizes, initial=0), strict=False)
        if row.state.watched is not None
    ]
    if places:
        logits = decoder.logits(hidden[[place for _, place in places]]).float()
        for (watched, _), probabilities in zip(places, logits.softmax(dim=-1), strict=True):
            watched.probability = float(probabilities[watched.token])


def _leave(decoder: TreeDecoder, tree_state: TreeState, rows: Sequence[Row]) -> list[Row]:
    """Let finished utterances go, with all they hold."""
    going = [index for index, row in enumerate(rows) if not row.state.done]
    for row in rows:
        if row.state.done:
            row.clear()
    if 0 < len(going) < len(rows):
        decoder.select(tree_state, going)
    return [rows[index] for index in going]


def _running(rows: Sequence[Row]) -> list[list[Prefix]]:
    """What each state's hypotheses stand on."""
    return [[hypothesis.prefix for hypothesis in row.state.running] for row in rows]
