"""The prefix at each slot of a decoder's token trees, and removal of unused nodes."""

from collections.abc import Iterable, Sequence

from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.token_tree import ROOT, chain_parents
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder, TreeState


class Placement:
    """The prefixes of one utterance at the slots of its token tree.

    ``slots`` has None at unused slots and at all prompt tokens but the last.
    """

    def __init__(self, prompt: list[int]):
        self.prompt = prompt
        self.slots: list[Prefix | None] = []

    def place(self, prefixes: Iterable[Prefix]) -> tuple[list[int], list[int]]:
        """Assign slots to new prefixes, ancestors first; return the call's tokens and parents."""
        tokens, parents = [], []
        for prefix in prefixes:
            if prefix.parent is None:
                # Not at slot 0 if the first calls evaluated other utterances only.
                tokens += self.prompt
                parents += chain_parents(len(self.prompt), ROOT, len(self.slots))
                self.slots += [None] * (len(self.prompt) - 1)
            else:
                tokens.append(prefix.token)
                parents.append(prefix.parent.slot)
            prefix.slot = len(self.slots)
            self.slots.append(prefix)
        return tokens, parents

    def fill(self, width: int) -> None:
        """Pad with unused slots up to ``width``."""
        self.slots += [None] * (width - len(self.slots))

    def forget_unused(self, running: Sequence[Prefix]) -> list[int]:
        """Return the slots of running prefixes, their ancestors and descendants; free the rest."""
        used = set(running)
        for tip in running:
            prefix = tip
            while (parent := prefix.parent) is not None and parent not in used:
                parent.children = {prefix.token: prefix}
                used.add(parent)
                prefix = parent
            if parent is not None:
                parent.children[prefix.token] = prefix
        descendants = [child for tip in running for child in tip.children.values()]
        while descendants:
            prefix = descendants.pop()
            if prefix.evaluated and prefix not in used:
                used.add(prefix)
                descendants += prefix.children.values()
        used_slots = []
        for slot, prefix in enumerate(self.slots):
            if prefix in used:
                first = slot if prefix.parent else slot - len(self.prompt) + 1
                used_slots += range(first, slot + 1)
            elif prefix is not None:
                prefix.forget()
        return used_slots

    def renumber(self, slots: list[int], width: int) -> None:
        """Move these slots to the front, as ``TreeDecoder.keep`` does."""
        self.slots = [self.slots[slot] for slot in slots]
        for slot, prefix in enumerate(self.slots):
            if prefix is not None:
                prefix.slot = slot
        self.fill(width)

    def clear(self) -> None:
        """Free all prefixes of a finished utterance."""
        for prefix in filter(None, self.slots):
            prefix.forget()
        self.slots = []


def compact(
    decoder: TreeDecoder,
    state: TreeState,
    placements: Sequence[Placement],
    running: Sequence[Sequence[Prefix]],
) -> None:
    """Drop the tree nodes that no running prefix of U utterances needs."""
    slots = [
        placement.forget_unused(prefixes)
        for placement, prefixes in zip(placements, running, strict=True)
    ]
    if all(len(used) == state.num_nodes for used in slots):
        return
    decoder.keep(state, slots)
    for placement, used in zip(placements, slots, strict=True):
        placement.renumber(used, state.num_nodes)
