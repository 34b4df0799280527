"""Keys and values of the token tree's nodes: one slot per node, written once.

A prefix that all paths share, such as a language model's speech embeddings, stands before them.
"""

from collections.abc import Sequence

import torch

from espnet_medusa.tree.upload import upload

GROWTH = 2


class NodeCache:
    """Self-attention keys and values of all layers, by node.

    Args:
        num_layers: Decoder layers, extra ones (a Medusa block) included.
        num_utterances: U.
        num_heads: Attention heads.
        head_size: Of one of them.
        dtype: Of keys and values.
        device: Where they live.
        capacity: Slots to start with; more are made when needed.

    Attributes:
        num_prefix: Slots before the nodes.
        num_nodes: Slots of nodes.
    """

    def __init__(
        self,
        num_layers: int,
        num_utterances: int,
        num_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
        capacity: int = 64,
    ):
        shape = (num_layers, num_utterances, capacity, 2, num_heads, head_size)
        self.slots = torch.zeros(shape, dtype=dtype, device=device)
        self.num_prefix = self.num_nodes = 0

    @property
    def capacity(self) -> int:
        """Slots there are."""
        return self.slots.size(2)

    def reserve(self, num_new: int) -> None:
        """Make room for ``num_new`` nodes behind those there are."""
        needed = self.num_prefix + self.num_nodes + num_new
        if needed > self.capacity:
            more = max(needed, GROWTH * self.capacity) - self.capacity
            self.slots = torch.nn.functional.pad(self.slots, (0, 0) * 3 + (0, more))

    def write(self, layer: int, keys_values: torch.Tensor) -> torch.Tensor:
        """Write one layer's new nodes, read all of its nodes.

        Args:
            layer: Layer index.
            keys_values: (U, T, 2, heads, size).

        Returns:
            (U, S + N + T, 2, heads, size), a view of the cache: S of the prefix.
        """
        start = self.num_prefix + self.num_nodes
        end = start + keys_values.size(1)
        slots = self.slots[layer]
        slots[:, start:end] = keys_values
        return slots[:, :end]

    def commit(self, num_new: int) -> None:
        """Count the nodes that all layers have written."""
        self.num_nodes += num_new

    def commit_prefix(self, length: int) -> None:
        """What all layers have written so far stays, before any node."""
        self.num_prefix = length

    def keep(self, slots: Sequence[Sequence[int]]) -> None:
        """Compact to these slots of each utterance; what stays in place is free."""
        self.num_nodes = max(map(len, slots))
        moved = (place for kept in slots for place, slot in enumerate(kept) if place != slot)
        start = min(moved, default=self.num_nodes)
        if start == self.num_nodes:
            return
        places = range(start, self.num_nodes)
        rows = [[kept[p] if p < len(kept) else p for p in places] for kept in slots]
        source = upload(rows, self.slots.device) + self.num_prefix
        utterances = torch.arange(len(rows), device=self.slots.device)[:, None]
        start, end = start + self.num_prefix, self.num_nodes + self.num_prefix
        self.slots[:, : len(rows), start:end] = self.slots[:, utterances, source]

    def select(self, utterances: Sequence[int]) -> None:
        """Keep these utterances."""
        self.slots = self.slots[:, upload(utterances, self.slots.device)]
