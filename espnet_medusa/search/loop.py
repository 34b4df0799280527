"""The loop of every search: draft, one decoder call for all utterances, walk on, forget.

Utterances advance at their own pace and leave when they are done; nobody waits for the slowest.
"""

import time
from collections.abc import Sequence
from typing import Protocol

import torch

from espnet_medusa.decoder.tree_decoder import TreeDecoder, TreeState
from espnet_medusa.draft.shape import DraftShape
from espnet_medusa.prefix import UNEVALUATED, Prefix
from espnet_medusa.search.walk import Draft, Strategy, Walk
from espnet_medusa.tree import ROOT


class Drafter(Protocol):
    """Says what the next decoder call evaluates.

    Attributes:
        strategy: How walks go on.
        shape: How far it drafts.
    """

    strategy: Strategy
    shape: DraftShape

    def draft(self, walks: Sequence[Walk]) -> None:
        """Set each walk's ``draft``: its unevaluated hypotheses and what may follow them."""


class Row:
    """A walk and its places in the token tree.

    Args:
        walk: The utterance.
        prompt: Its prompt tokens.

    Attributes:
        slots: What each node of the token tree holds; None for nodes that no prefix needs by name.
    """

    def __init__(self, walk: Walk, prompt: list[int]):
        self.walk = walk
        self.prompt = prompt
        self.slots: list[Prefix | None] = []

    def place(self) -> tuple[list[int], list[int]]:
        """Give slots to the draft's nodes; tokens and parents for the decoder call."""
        tokens, parents = [], []
        for prefix in self.walk.draft.nodes:
            if prefix.parent is None:
                tokens += self.prompt
                parents += [ROOT, *range(len(self.prompt) - 1)]
                self.slots += [None] * (len(self.prompt) - 1)
            else:
                tokens.append(prefix.token)
                parents.append(prefix.parent.slot)
            prefix.slot = len(self.slots)
            self.slots.append(prefix)
        return tokens, parents

    def living(self) -> list[int]:
        """Slots that a running hypothesis stands on or may go on to; the others are forgotten."""
        tips = [hypothesis.prefix for hypothesis in self.walk.running]
        living = set(tips)
        for tip in tips:
            prefix = tip
            while (parent := prefix.parent) is not None and parent not in living:
                parent.children = {prefix.token: prefix}
                living.add(parent)
                prefix = parent
            if parent is not None:
                parent.children[prefix.token] = prefix
        below = [child for tip in tips for child in tip.children.values()]
        while below:
            prefix = below.pop()
            if prefix.evaluated and prefix not in living:
                living.add(prefix)
                below += prefix.children.values()
        kept = []
        for slot, prefix in enumerate(self.slots):
            if prefix is None and slot < len(self.prompt) or prefix in living:
                kept.append(slot)
            elif prefix is not None:
                _forget(prefix)
        return kept

    def move(self, kept: list[int], width: int) -> None:
        """Number the slots anew after ``keep``."""
        self.slots = [self.slots[slot] for slot in kept]
        for slot, prefix in enumerate(self.slots):
            if prefix is not None:
                prefix.slot = slot
        self.slots += [None] * (width - len(self.slots))


def run(
    decoder: TreeDecoder,
    drafter: Drafter,
    walks: Sequence[Walk],
    memory: torch.Tensor,
    memory_lengths: torch.Tensor,
    prompt: torch.Tensor,
) -> None:
    """Walk until everybody is done.

    Args:
        decoder: Evaluates nodes.
        drafter: Drafts, and knows the strategy by which walks go on.
        walks: U, at their roots.
        memory: (U, S, D) encoder output.
        memory_lengths: (U,) frames.
        prompt: (U, P) tokens to start from.
    """
    strategy, started = drafter.strategy, time.perf_counter()
    state = decoder.start(memory, memory_lengths, with_heads=drafter.shape.depth > 0)
    _share_seconds(walks, started)
    rows = [Row(walk, tokens) for walk, tokens in zip(walks, prompt.tolist(), strict=True)]
    for walk in walks:
        walk.draft = _first_draft(walk, strategy.scoring.constraints.forced_prefix)
    while rows:
        started, present = time.perf_counter(), rows
        walks = [row.walk for row in rows]
        _evaluate(decoder, state, rows, strategy)
        before = [walk.steps for walk in walks]
        strategy.advance(walks)
        for walk, steps in zip(walks, before, strict=True):
            walk.statistics.count_drafts(walk.draft.depth, walk.steps - steps - 1)
        rows = _leave(decoder, state, rows)
        if rows:
            _compact(decoder, state, rows)
            walks = [row.walk for row in rows]
            drafter.draft(walks)
            strategy.accept_unverified(walks)
            rows = _leave(decoder, state, rows)
        _share_seconds([row.walk for row in present], started)


def _share_seconds(walks: Sequence[Walk], started: float) -> None:
    """Decoder seconds since then, evenly among those present."""
    seconds = (time.perf_counter() - started) / len(walks)
    for walk in walks:
        walk.statistics.decoder_seconds += seconds


def _first_draft(walk: Walk, forced: Sequence[int]) -> Draft:
    """The prompt, and what every hypothesis begins with."""
    prefix = walk.root
    nodes = {prefix: 0.0}
    for token in forced[: walk.max_length - 1]:
        prefix = prefix.child(token)
        nodes[prefix] = 0.0
    return Draft([], nodes)


def _evaluate(
    decoder: TreeDecoder, state: TreeState, rows: Sequence[Row], strategy: Strategy
) -> None:
    """One decoder call for the drafts of all rows, and what it says of them."""
    first = state.num_nodes
    tokens, parents = zip(*(row.place() for row in rows), strict=True)
    outputs = decoder.extend(state, tokens, parents)
    placed = [prefix for row in rows for prefix in row.slots[first:]]
    for row, new in zip(rows, tokens, strict=True):
        row.walk.statistics.decoder_calls += 1
        row.walk.statistics.nodes += len(new)
        row.slots += [None] * (state.num_nodes - len(row.slots))
    hidden = outputs.hidden
    asked = {prefix for row in rows for prefix in row.walk.draft.asked}
    if len(asked) < len(placed):  # of the prompt only what follows it counts
        hidden = hidden[[place for place, prefix in enumerate(placed) if prefix in asked]]
    for place, prefix in enumerate(placed):
        if prefix is not None:
            prefix.head_input = (outputs.head_input, place)
    strategy.judge([row.walk for row in rows], decoder.logits(hidden))


def _leave(decoder: TreeDecoder, state: TreeState, rows: Sequence[Row]) -> list[Row]:
    """Let finished utterances go, with all they hold."""
    going = [index for index, row in enumerate(rows) if not row.walk.done]
    for row in rows:
        if row.walk.done:
            for prefix in filter(None, row.slots):
                _forget(prefix)
    if 0 < len(going) < len(rows):
        decoder.select(state, going)
    return [rows[index] for index in going]


def _compact(decoder: TreeDecoder, state: TreeState, rows: Sequence[Row]) -> None:
    """Drop the nodes that no hypothesis needs any more."""
    kept = [row.living() for row in rows]
    if all(len(slots) == state.num_nodes for slots in kept):
        return
    decoder.keep(state, kept)
    for row, slots in zip(rows, kept, strict=True):
        row.move(slots, state.num_nodes)


def _forget(prefix: Prefix) -> None:
    """Free what a dead prefix holds; hypotheses that ended still read its tokens."""
    prefix.slot = UNEVALUATED
    prefix.logits = prefix.head_input = None
    prefix.children = {}
    prefix.memo = {}
