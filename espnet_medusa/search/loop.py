"""The loop of every search: draft, one decoder call for all utterances, walk on, forget.

Utterances advance at their own pace and leave when they are done; nobody waits for the slowest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import torch

from espnet_medusa.search.walk import Strategy, Walk
from espnet_medusa.tree.placement import Placement, compact
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.surrogate import DraftInput
from espnet_medusa.tree.tree_decoder import TreeDecoder, TreeState
from espnet_medusa.tree.upload import upload


class Drafter(Protocol):
    """Says what the next decoder call evaluates.

    Attributes:
        strategy: How walks go on.
        needs_head_input: Whether it drafts from what the decoder computes for heads.
    """

    strategy: Strategy
    needs_head_input: bool

    def begin(
        self,
        walks: Sequence[Walk],
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        draft_inputs: Sequence[DraftInput],
        heard: Any,
    ) -> Drafter:
        """What drafts for these utterances; arguments as ``Surrogate.begin``'s."""

    def draft_prompt(self, walks: Sequence[Walk]) -> None:
        """Set each walk's first ``draft``: its prompt and what may follow it."""

    def draft(self, walks: Sequence[Walk]) -> None:
        """Set each walk's ``draft``: its unevaluated hypotheses and what may follow them."""


class Row(Placement):
    """A walk and its places in the token tree.

    Args:
        walk: The utterance.
        prompt: Its prompt tokens.
    """

    def __init__(self, walk: Walk, prompt: list[int]):
        super().__init__(prompt)
        self.walk = walk


def run(
    decoder: TreeDecoder,
    drafter: Drafter,
    walks: Sequence[Walk],
    memory: torch.Tensor,
    memory_lengths: torch.Tensor,
    prompt: Sequence[torch.Tensor] | torch.Tensor,
    draft_inputs: Sequence[DraftInput] | None = None,
) -> None:
    """Walk until everybody is done.

    Args:
        decoder: Evaluates nodes.
        drafter: Drafts, and knows the strategy by which walks go on.
        walks: U, at their roots.
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
    state = decoder.start(memory, memory_lengths, with_heads=drafter.needs_head_input)
    share_seconds(walks, started)
    started = time.perf_counter()
    drafter = drafter.begin(walks, memory, memory_lengths, draft_inputs, state.heard)
    drafter.draft_prompt(walks)
    share_seconds(walks, started, drafting=True)
    rows = [Row(walk, tokens) for walk, tokens in zip(walks, prompts, strict=True)]
    while rows:
        started, walks = time.perf_counter(), [row.walk for row in rows]
        _evaluate(decoder, state, rows, strategy)
        before = [walk.steps for walk in walks]
        strategy.advance(walks)
        for walk, steps in zip(walks, before, strict=True):
            depth, accepted = walk.draft.depth, max(walk.steps - steps - 1, 0)
            walk.draft.accepted = min(accepted, depth)
            walk.statistics.count_drafts(depth, accepted)
        rows = _leave(decoder, state, rows)
        if rows:
            compact(decoder, state, rows, _running(rows))
        share_seconds(walks, started)
        if rows:
            started, walks = time.perf_counter(), [row.walk for row in rows]
            drafter.draft(walks)
            strategy.accept_unverified(walks)
            rows = _leave(decoder, state, rows)
            share_seconds(walks, started, drafting=True)


def share_seconds(walks: Sequence[Walk], started: float, drafting: bool = False) -> None:
    """Seconds since then, evenly among those present."""
    seconds = (time.perf_counter() - started) / len(walks)
    for walk in walks:
        walk.statistics.decoder_seconds += seconds
        if drafting:
            walk.statistics.draft_seconds += seconds


def _evaluate(
    decoder: TreeDecoder, state: TreeState, rows: Sequence[Row], strategy: Strategy
) -> None:
    """One decoder call for the drafts of all rows, and what it says of them."""
    first = state.num_nodes
    tokens, parents = zip(*(row.place(row.walk.draft.nodes) for row in rows), strict=True)
    outputs = decoder.extend(state, tokens, parents)
    placed = [prefix for row in rows for prefix in row.slots[first:]]
    for row, new in zip(rows, tokens, strict=True):
        row.walk.statistics.decoder_calls += 1
        row.walk.statistics.nodes += len(new)
        row.fill(state.num_nodes)
    hidden = outputs.hidden
    if first == 0:
        _watch(decoder, rows, [*map(len, tokens)], hidden)
    asked = {prefix for row in rows for prefix in row.walk.draft.asked}
    if len(asked) < len(placed):  # of the prompt only what follows it counts
        places = [place for place, prefix in enumerate(placed) if prefix in asked]
        hidden = hidden[upload(places, hidden.device, torch.long)]
    for place, prefix in enumerate(placed):
        if prefix is not None:
            prefix.head_input = (outputs.head_input, place)
    strategy.judge([row.walk for row in rows], decoder.logits(hidden))


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
        (row.walk.watched, before + row.walk.watched.place)
        for row, before in zip(rows, accumulate(sizes, initial=0), strict=False)
        if row.walk.watched is not None
    ]
    if places:
        logits = decoder.logits(hidden[[place for _, place in places]]).float()
        for (watched, _), probabilities in zip(places, logits.softmax(dim=-1), strict=True):
            watched.probability = float(probabilities[watched.token])


def _leave(decoder: TreeDecoder, state: TreeState, rows: Sequence[Row]) -> list[Row]:
    """Let finished utterances go, with all they hold."""
    going = [index for index, row in enumerate(rows) if not row.walk.done]
    for row in rows:
        if row.walk.done:
            row.clear()
    if 0 < len(going) < len(rows):
        decoder.select(state, going)
    return [rows[index] for index in going]


def _running(rows: Sequence[Row]) -> list[list[Prefix]]:
    """What each walk's hypotheses stand on."""
    return [[hypothesis.prefix for hypothesis in row.walk.running] for row in rows]
