"""The base of all decoder runtimes: token trees, masks, heads and vocabulary projection."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from espnet_medusa.data.processor_name import processor_name
from espnet_medusa.decoding.draft.head_proposers import (
    AttendingHeadsProposer,
    ParallelHeadsProposer,
    RecurrentHeadsProposer,
)
from espnet_medusa.decoding.runtime.heads import (
    PackedAttendingHeads,
    PackedRecurrentHeads,
    pack_base,
    pack_tables,
)
from espnet_medusa.decoding.runtime.layer import LayerStack, NewNodes, Packing
from espnet_medusa.decoding.runtime.linear import pack_linear
from espnet_medusa.decoding.runtime.native.operations import native_best_tokens, native_top_tokens
from espnet_medusa.decoding.runtime.native_decoder import NativeAttendingHeads
from espnet_medusa.decoding.runtime.precision import INT8, Precision, draft_precision, has_kernels
from espnet_medusa.decoding.tree.best_tokens import BestTokens, TopTokens, best_tokens, top_tokens
from espnet_medusa.decoding.tree.node_cache import NodeCache
from espnet_medusa.decoding.tree.proposer import Proposer
from espnet_medusa.decoding.tree.token_tree import TokenTree, upload, visibility
from espnet_medusa.decoding.tree.tree_decoder import NodeOutputs, TreeDecoder, TreeState
from espnet_medusa.networks.heads import AttendingHeads, RecurrentHeads
from espnet_medusa.networks.multi_token_decoder import MultiTokenDecoder


class TreeRuntime(TreeDecoder):
    """A trained decoder for searches: copies of the current weights, and shared embeddings.

    ``table`` has (V, D) token embeddings; ``scale`` is their factor.
    """

    # Set by subclasses.
    layers: LayerStack  # packed decoder layers
    norm: Callable[[torch.Tensor], torch.Tensor] | None  # after the last layer, (R, D) to (R, D)
    block = LayerStack()  # of the heads; empty without one

    def __init__(
        self,
        decoder: MultiTokenDecoder,
        precision: Precision,
        table: torch.Tensor,
        scale: float = 1.0,
    ):
        self.precision, self.heads = precision, decoder.heads
        self.dtype, self.device = precision.dtype, table.device
        self._max_depth = decoder.max_depth
        self.table, self.scale = table.detach(), scale
        self._size = table.size(1)
        self.weight = decoder.projection.detach()
        bias = decoder.projection_bias
        self.bias = None if bias is None else bias.detach()
        self.projection = pack_linear(decoder.projection, self.bias, precision)
        tied = self.weight.data_ptr() == self.table.data_ptr()
        self.embeds_projection = tied and scale == 1  # the projection's rows are the embeddings
        if precision.kernels and tied:
            # The projection has the same rows in a quarter of the memory.
            self.table = self.weight = None
        self.base_head = pack_base(self.heads, precision)

    def max_depth(self, frames: int) -> int:
        return self._max_depth(frames)

    @property
    def description(self) -> str:
        heads = "" if self.heads is None else f", {self.num_heads} {type(self.heads).__name__}"
        machine = f"{processor_name(self.device)}, {torch.get_num_threads()} threads"
        shape = f"{len(self.layers)} layers of {self._size}, {self.precision}"
        return f"{machine}, {type(self).__name__}, {shape}{heads}"

    @property
    def num_heads(self) -> int:
        return 0 if self.heads is None else self.heads.num_heads

    @property
    def heads_trained(self) -> bool:
        return self.heads is not None and self.heads.trained

    def extend(self, state, tokens, parents) -> NodeOutputs:
        first, sizes = self._grow(state, tokens, parents)
        width = max(sizes)
        state.cache.reserve(width)
        ids = [token for row in tokens for token in row]
        rows = zip(state.trees, state.offsets, sizes, strict=True)
        positions = [
            offset + depth for tree, offset, size in rows for depth in depths(tree, first, size)
        ]
        numbers = upload([ids, positions], self.device)
        mask, packing = self._mask(state, first), Packing.of(sizes, self.device)
        outputs = self._compute(state, NewNodes(*numbers.unbind(), mask, packing))
        state.cache.commit(width)
        return outputs

    def _grow(
        self, state: TreeState, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]
    ) -> tuple[int, list[int]]:
        """Add nodes to the trees; return the first one's slot and their number per utterance."""
        first, sizes = state.num_nodes, [*map(len, tokens)]
        for tree, row in zip(state.trees, parents, strict=True):
            tree.add(row)
            tree.fill(first + max(sizes))
        state.calls += 1
        state.nodes += sum(sizes)
        return first, sizes

    @abstractmethod
    def _compute(self, state: TreeState, nodes: NewNodes) -> NodeOutputs:
        """Compute new nodes on the device, with the same operations for the same shapes.

        The state's cache receives their keys and values.
        """

    def _through_layers(
        self, hidden: torch.Tensor, state: TreeState, nodes: NewNodes, *context: Any
    ) -> NodeOutputs:
        """Run layers on (R, D), norm and, with ``state.with_heads``, the heads' block."""
        hidden = self.layers.extend(hidden, nodes, 0, *context)
        hidden = head_input = hidden if self.norm is None else self.norm(hidden)
        if state.with_heads and self.block:
            head_input = self.block.extend(hidden, nodes, len(self.layers), *context)
        return NodeOutputs(hidden, head_input)

    def _used_layers(self, with_heads: bool) -> tuple:
        """Return all layers that a state needs, the heads' block last."""
        return (*self.layers, *self.block) if with_heads else self.layers

    def _empty_state(
        self, num_utterances: int, heads: tuple[int, int], with_heads: bool
    ) -> TreeState:
        """Create empty trees; ``heads`` are number and size of the attention heads."""
        num_layers = len(self._used_layers(with_heads))
        return TreeState(
            trees=[TokenTree() for _ in range(num_utterances)],
            cache=NodeCache(num_layers, num_utterances, *heads, self.dtype, self.device),
            encoder_keys_values=[],
            encoder_out_mask=None,
            with_heads=with_heads,
            offsets=[0] * num_utterances,
        )

    def _mask(self, state: TreeState, first: int) -> torch.Tensor | None:
        """Return the self-attention mask; None if one new node per utterance attends to all."""
        single, every = first == state.num_nodes - 1, (1 << state.num_nodes) - 1
        if single and all(tree.visible[-1] == every for tree in state.trees):
            return None
        return self._additive_mask(state, first)

    def _additive_mask(self, state: TreeState, first: int) -> torch.Tensor:
        """Return (U, 1, T, N): 0 for visible nodes, -inf for others."""
        mask = np.where(visibility(state.trees, first), np.float32(0), np.float32(-np.inf))
        return upload(mask, self.device).to(self.dtype)[:, None]

    def embed_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return token embeddings without positions: (R,) to (R, D)."""
        return self._embeddings(tokens).to(self.dtype)

    def _embeddings(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            rows = self.projection.rows(tokens)
        else:
            rows = torch.nn.functional.embedding(tokens, self.table)
        return rows if self.scale == 1 else rows * self.scale

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.base_head is not None:
            hidden = self.base_head(hidden)
        return self.projection(hidden)

    def best_tokens(self, logits, restriction=None) -> BestTokens:
        native = has_kernels(self.device) and logits.dtype == torch.float32
        return (native_best_tokens if native else best_tokens)(logits, restriction)

    def top_tokens(self, logits, count, restriction=None) -> TopTokens:
        native = has_kernels(self.device) and logits.dtype == torch.float32
        return (native_top_tokens if native else top_tokens)(logits, count, restriction)

    def proposer(self, vocabulary=None, precision=None, verified=False) -> Proposer | None:
        if self.heads is None:
            return None
        native = isinstance(self.heads, AttendingHeads) and has_kernels(self.device)
        if precision is None and verified and native:
            precision = INT8
        resolved = draft_precision(precision, self.precision, self.device)
        projection = self._draft_projection(vocabulary, resolved)
        if isinstance(self.heads, RecurrentHeads):
            cell = PackedRecurrentHeads(self.heads, resolved)
            return RecurrentHeadsProposer(cell, self.embed_tokens, projection, vocabulary)
        if isinstance(self.heads, AttendingHeads):
            layer = self._attending_heads(projection, vocabulary, resolved)
            return AttendingHeadsProposer(layer, self.embed_tokens, projection, vocabulary)
        tables = pack_tables(self.heads, projection, vocabulary, resolved)
        return ParallelHeadsProposer(tables, self.num_heads, vocabulary)

    def _attending_heads(
        self,
        projection: Callable[[torch.Tensor], torch.Tensor],
        vocabulary: torch.Tensor | None,
        precision: Precision,
    ) -> PackedAttendingHeads:
        if precision.kernels:
            return NativeAttendingHeads(self.heads, projection, vocabulary, self.embeds_projection)
        return PackedAttendingHeads(self.heads, precision)

    def _draft_projection(
        self, vocabulary: torch.Tensor | None, precision: Precision
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the vocabulary projection to the tokens of ``vocabulary``; None: to all."""
        if vocabulary is None and precision == self.precision:
            return self.projection
        weight, bias = self.weight, self.bias
        if weight is None:
            weight = self.projection.rows(vocabulary)
        elif vocabulary is not None:
            weight = weight[vocabulary]
        if bias is not None and vocabulary is not None:
            bias = bias[vocabulary]
        return pack_linear(weight, bias, precision)


def depths(tree: TokenTree, first: int, count: int) -> list[int]:
    return [tree.depth(slot) for slot in range(first, first + count)]
