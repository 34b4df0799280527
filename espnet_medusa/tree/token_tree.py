"""The token tree under every search: nodes, parents, who sees whom.

A node is a token with a parent; the path from the root is a hypothesis prefix; its depth is its
position. Trees live on the host: a search decides there, and a few bits are cheaper to keep than
to compute on a device and read back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

ROOT = -1  # parent of a node that starts a path


@dataclass
class TokenTree:
    """One utterance's nodes, by slot.

    Attributes:
        parents: Slot of each node's parent, or ``ROOT``.
        visible: Bit sets: bit j of ``visible[i]`` is set where node j is node i or an ancestor of
            it. A dead slot sees itself alone, and nobody sees it.
    """

    parents: list[int] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.parents)

    def add(self, parents: Sequence[int]) -> None:
        """Put new nodes behind the ones there are.

        Args:
            parents: Slot of each one's parent, an older node's or an earlier new one's, or
                ``ROOT``.
        """
        for parent in parents:
            itself = 1 << len(self.parents)
            self.visible.append(itself if parent == ROOT else self.visible[parent] | itself)
            self.parents.append(parent)

    def keep(self, slots: Sequence[int]) -> None:
        """Keep these nodes, in this order, ancestors before descendants."""
        moved = {slot: place for place, slot in enumerate(slots)}
        moved[ROOT] = ROOT
        parents = [moved[self.parents[slot]] for slot in slots]
        self.parents, self.visible = [], []
        self.add(parents)

    def fill(self, width: int) -> None:
        """Add dead slots up to ``width``, so that trees of a batch are equally long."""
        self.add([ROOT] * (width - len(self)))

    def depth(self, slot: int) -> int:
        """Number of a node's ancestors: its position."""
        return self.visible[slot].bit_count() - 1

    def path(self, slot: int) -> list[int]:
        """Slots from the root to ``slot``."""
        path = []
        while slot != ROOT:
            path.append(slot)
            slot = self.parents[slot]
        return path[::-1]


def visibility(trees: Sequence[TokenTree], first: int) -> np.ndarray:
    """(U, T, N) bool, who is seen by the last T nodes, those from slot ``first`` on.

    Args:
        trees: U of one length N.
        first: N - T.
    """
    num_nodes = len(trees[0])
    num_bytes = (num_nodes + 7) // 8
    rows = [bits.to_bytes(num_bytes, "little") for tree in trees for bits in tree.visible[first:]]
    packed = np.frombuffer(b"".join(rows), dtype=np.uint8)
    packed = packed.reshape(len(trees), num_nodes - first, num_bytes)
    return np.unpackbits(packed, axis=2, count=num_nodes, bitorder="little").astype(bool)


def chain_parents(length: int, parent: int, first_slot: int) -> list[int]:
    """Parents of a chain of new nodes from ``first_slot`` on; the first hangs on ``parent``."""
    return [parent, *range(first_slot, first_slot + length - 1)][:length]
