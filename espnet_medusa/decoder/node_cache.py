"""Keys and values of the token tree's nodes: one slot per node, written once."""

import torch

from espnet_medusa.tree import DEAD

GROWTH = 2


class NodeCache:
    """Self-attention keys and values of all layers, by node.

    Args:
        num_layers: Decoder layers, extra ones (a Medusa block) included.
        num_utterances: U.
        num_attention_heads: Attention heads.
        head_size: Size of one attention head.
        dtype: Of keys and values.
        device: Where they live.
        capacity: Slots to start with; more are made when needed.
    """

    def __init__(
        self,
        num_layers: int,
        num_utterances: int,
        num_attention_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
        capacity: int = 64,
    ):
        shape = (num_layers, 2, num_utterances, num_attention_heads, capacity, head_size)
        self.slots = torch.empty(shape, dtype=dtype, device=device)
        self.num_nodes = 0

    def reserve(self, num_new: int) -> None:
        """Make room for ``num_new`` nodes behind those there are."""
        needed = self.num_nodes + num_new
        capacity = self.slots.size(4)
        if needed > capacity:
            more = max(needed, GROWTH * capacity) - capacity
            self.slots = torch.nn.functional.pad(self.slots, (0, 0, 0, more))

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new nodes, read all of its nodes.

        Args:
            layer: Layer index.
            keys: (U, heads, T, size).
            values: (U, heads, T, size).

        Returns:
            Keys and values (U, heads, N + T, size), views of the cache.
        """
        end = self.num_nodes + keys.size(2)
        self.slots[layer, 0, :, :, self.num_nodes : end] = keys
        self.slots[layer, 1, :, :, self.num_nodes : end] = values
        return self.slots[layer, 0, :, :, :end], self.slots[layer, 1, :, :, :end]

    def commit(self, num_new: int) -> None:
        """Count the nodes that all layers have written."""
        self.num_nodes += num_new

    def keep(self, nodes: torch.Tensor) -> None:
        """Compact to these slots (U, M), ``DEAD`` ones excepted; what stays in place is free."""
        target = torch.arange(nodes.size(1), device=nodes.device)
        nodes = torch.where(nodes == DEAD, target, nodes)
        moved = (nodes != target).any(0).nonzero()
        self.num_nodes = nodes.size(1)
        if len(moved) == 0:
            return
        start = int(moved[0])
        rows = torch.arange(nodes.size(0), device=nodes.device)[:, None]
        by_node = self.slots.transpose(3, 4)  # (layers, 2, U, N, heads, size)
        by_node[:, :, :, start : self.num_nodes] = by_node[:, :, rows, nodes[:, start:]]

    def select(self, utterances: torch.Tensor) -> None:
        """Keep these utterances (indices)."""
        self.slots = self.slots[:, :, utterances]
