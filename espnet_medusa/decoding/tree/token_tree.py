"""The token tree of a search: nodes, parents, attention visibility.

A node is a token with a parent. The path from the root to a node is a hypothesis prefix, and the
node's depth is the token's position. Trees are on the host, where the search runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

ROOT = -1  # parent of a node that starts a path


@dataclass
class TokenTree:
    """One utterance's nodes, by slot."""

    parents: list[int] = field(default_factory=list)  # slot of each node's parent, or ``ROOT``
    # Bit sets: bit j of ``visible[i]`` is set if node j is node i or an ancestor of it. A padding
    # slot attends only to itself, and no node attends to it.
    visible: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.parents)

    def add(self, parents: Sequence[int]) -> None:
        """Append a node for each parent: the slot of an old or earlier new node, or ``ROOT``."""
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
        """Append padding slots up to ``width``, so that all trees of a batch have one length."""
        self.add([ROOT] * (width - len(self)))

    def depth(self, slot: int) -> int:
        """Return a node's number of ancestors, which is its position."""
        return self.visible[slot].bit_count() - 1

    def path(self, slot: int) -> list[int]:
        """Return the slots from the root to ``slot``."""
        path = []
        while slot != ROOT:
            path.append(slot)
            slot = self.parents[slot]
        return path[::-1]


def visibility(trees: Sequence[TokenTree], first: int) -> np.ndarray:
    """Return bool (U, N - first, N), True where a node from ``first`` on attends to a node."""
    num_nodes = len(trees[0])
    num_bytes = (num_nodes + 7) // 8
    rows = [bits.to_bytes(num_bytes, "little") for tree in trees for bits in tree.visible[first:]]
    packed = np.frombuffer(b"".join(rows), dtype=np.uint8)
    packed = packed.reshape(len(trees), num_nodes - first, num_bytes)
    return np.unpackbits(packed, axis=2, count=num_nodes, bitorder="little").astype(bool)


def chain_parents(length: int, parent: int, first_slot: int) -> list[int]:
    """Return the parents of ``length`` new nodes, chained after ``parent`` from ``first_slot``."""
    return [parent, *range(first_slot, first_slot + length - 1)][:length]


def upload(numbers: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return ``torch.tensor(numbers)`` on a device, without synchronizing with a GPU."""
    return staged(numbers, device, dtype).to(device, non_blocking=True)


def download(*parts: torch.Tensor) -> list[list[float]]:
    """Return the values of tensors (R,) on the host, after a single copy from a GPU."""
    if parts[0].device.type == "cpu":
        return [part.tolist() for part in parts]
    return torch.stack([part.double() for part in parts]).tolist()


def staged(numbers: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the tensor on the host, in pinned memory for a GPU; arguments as in ``upload``."""
    tensor = torch.as_tensor(numbers, dtype=dtype)
    return tensor.pin_memory() if device.type == "cuda" else tensor
