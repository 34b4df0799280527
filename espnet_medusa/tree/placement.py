"""Where an utterance's prefixes stand in a decoder's token tree, and which of them live on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from espnet_medusa.tree.prefix import UNEVALUATED, Prefix
from espnet_medusa.tree.token_tree import ROOT

if TYPE_CHECKING:
    from espnet_medusa.tree.tree_decoder import TreeDecoder, TreeState


class Placement:
    """Slots of one utterance's prefixes.

    Args:
        prompt: Its prompt tokens.

    Attributes:
        slots: What each node of the token tree holds; None for nodes that no prefix needs by name.
    """

    def __init__(self, prompt: list[int]):
        self.prompt = prompt
        self.slots: list[Prefix | None] = []

    def place(self, prefixes: Iterable[Prefix]) -> tuple[list[int], list[int]]:
        """Give slots to new prefixes, ancestors first; tokens and parents for the decoder call."""
        tokens, parents = [], []
        for prefix in prefixes:
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

    def fill(self, width: int) -> None:
        """Nothing stands in the slots up to ``width``."""
        self.slots += [None] * (width - len(self.slots))

    def living(self, running: Sequence[Prefix]) -> list[int]:
        """Slots that a running prefix stands on or may go on to; the others are forgotten."""
        living = set(running)
        for tip in running:
            prefix = tip
            while (parent := prefix.parent) is not None and parent not in living:
                parent.children = {prefix.token: prefix}
                living.add(parent)
                prefix = parent
            if parent is not None:
                parent.children[prefix.token] = prefix
        below = [child for tip in running for child in tip.children.values()]
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
        self.fill(width)

    def clear(self) -> None:
        """The utterance is done: its prefixes hold nothing any more."""
        for prefix in filter(None, self.slots):
            _forget(prefix)


def compact(
    decoder: TreeDecoder,
    state: TreeState,
    placements: Sequence[Placement],
    running: Sequence[Sequence[Prefix]],
) -> None:
    """Drop the nodes that nobody needs any more.

    Args:
        decoder: Evaluated them.
        state: Of U utterances.
        placements: U.
        running: Of each, the prefixes that go on.
    """
    kept = [
        placement.living(prefixes) for placement, prefixes in zip(placements, running, strict=True)
    ]
    if all(len(slots) == state.num_nodes for slots in kept):
        return
    decoder.keep(state, kept)
    for placement, slots in zip(placements, kept, strict=True):
        placement.move(slots, state.num_nodes)


def _forget(prefix: Prefix) -> None:
    """Free what a dead prefix holds; hypotheses that ended still read its tokens."""
    prefix.slot = UNEVALUATED
    prefix.logits = prefix.head_input = None
    prefix.children = {}
    prefix.memo = {}
