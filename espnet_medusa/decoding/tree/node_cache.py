"""Self-attention keys and values of the token tree's nodes, one slot per node.

The slots of a common prefix of all paths, such as Speech-LLaMA's speech embeddings, come first.
"""

from collections.abc import Sequence

import torch

from espnet_medusa.decoding.tree.token_tree import upload

GROWTH, FEWEST = 2, 64


class NodeCache:
    """Self-attention keys and values of all layers, by node.

    Args:
        num_layers: Decoder layers, including extra ones (a Medusa block).
        capacity: Initial slots; 0: ``FEWEST`` when needed. The cache grows.

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
        capacity: int = 0,
    ):
        shape = (num_layers, num_utterances, capacity, 2, num_heads, head_size)
        self.slots = torch.zeros(shape, dtype=dtype, device=device)
        self.num_prefix = self.num_nodes = 0

    @property
    def capacity(self) -> int:
        return self.slots.size(2)

    def reserve(self, num_new: int) -> None:
        needed = self.num_prefix + self.num_nodes + num_new
        if needed > self.capacity:
            more = max(needed, GROWTH * self.capacity or FEWEST) - self.capacity
            self.slots = torch.nn.functional.pad(self.slots, (0, 0) * 3 + (0, more))

    def write(self, layer: int, keys_values: torch.Tensor) -> torch.Tensor:
        """Write one layer's T new nodes (U, T, 2, heads, size) and return all of its nodes.

        They are (U, S + N + T, 2, heads, size), a view of the cache; S is ``num_prefix``.
        """
        start = self.num_prefix + self.num_nodes
        end = start + keys_values.size(1)
        slots = self.slots[layer]
        slots[:, start:end] = keys_values
        return slots[:, :end]

    def commit(self, num_new: int) -> None:
        """Increase ``num_nodes``, after all layers have written the new nodes."""
        self.num_nodes += num_new

    def keep(self, slots: Sequence[Sequence[int]]) -> None:
        """Move these slots of each utterance to the front; copy from the first moved slot on."""
        self.num_nodes = max(map(len, slots))
        moved = (place for row in slots for place, slot in enumerate(row) if place != slot)
        start = min(moved, default=self.num_nodes)
        if start == self.num_nodes:
            return
        places = range(start, self.num_nodes)
        rows = [[row[p] if p < len(row) else p for p in places] for row in slots]
        source = upload(rows, self.slots.device) + self.num_prefix
        utterances = torch.arange(len(rows), device=self.slots.device)[:, None]
        start, end = start + self.num_prefix, self.num_nodes + self.num_prefix
        self.slots[:, : len(rows), start:end] = self.slots[:, utterances, source]

    def select(self, utterances: Sequence[int]) -> None:
        self.slots = self.slots[:, upload(utterances, self.slots.device)]
