"""Runtimes of decoders with cross-attention: Whisper's and ESPnet's ``decoder: transformer``."""

import copy
from collections.abc import Iterable

import torch

from espnet_medusa.data.threads import lock_of
from espnet_medusa.decoding.draft.cascade import CascadeProposer
from espnet_medusa.decoding.draft.head_proposers import AttendingHeadsProposer
from espnet_medusa.decoding.draft.text import TextProposer
from espnet_medusa.decoding.runtime.heads import PackedCrossKeysValues
from espnet_medusa.decoding.runtime.layer import (
    AttentionWeights,
    LayerStack,
    LayerWeights,
    NewNodes,
    PackedLayer,
)
from espnet_medusa.decoding.runtime.linear import GELU, RELU, pack_norm
from espnet_medusa.decoding.runtime.native_decoder import (
    NativeAttendingHeads,
    NativeLayer,
    NativeStack,
    visible_bits,
)
from espnet_medusa.decoding.runtime.native_loop import NativeLoop, TextDrafts
from espnet_medusa.decoding.runtime.precision import Precision
from espnet_medusa.decoding.runtime.tree_runtime import TreeRuntime
from espnet_medusa.decoding.tree.node_cache import GROWTH
from espnet_medusa.decoding.tree.tree_decoder import NodeOutputs, TreeState
from espnet_medusa.networks.espnet_compat import DecoderLayer
from espnet_medusa.networks.espnet_transformer import TOKEN_SCALES, TransformerMedusaDecoder
from espnet_medusa.networks.heads import AttendingHeads
from espnet_medusa.networks.masks import padding_mask
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder

FIRST_POSITIONS = 512


class CrossAttentionRuntime(TreeRuntime):
    """Layers with self-attention over the token tree and cross-attention over encoder output."""

    positions: torch.Tensor  # position embeddings (positions, D)

    def _position_table(self, count: int) -> torch.Tensor:
        """Return position embeddings (``count`` or more, D)."""
        return self.positions

    def start(self, encoder_out, encoder_out_lens, with_heads=True) -> TreeState:
        encoder_out = encoder_out.to(self.dtype)
        layers = self._used_layers(with_heads)
        heads = layers[0].num_heads, layers[0].head_size
        state = self._empty_state(len(encoder_out), heads, with_heads)
        state.encoder_keys_values = [layer.project_encoder_out(encoder_out) for layer in layers]
        state.encoder_out_mask = padding_mask(encoder_out, encoder_out_lens)
        if with_heads and isinstance(self.heads, AttendingHeads):
            last, mask = state.encoder_keys_values[-1], state.encoder_out_mask
            state.cross_keys_values = PackedCrossKeysValues(last, mask, len(encoder_out))
        return state

    def chain_loop(self, proposer) -> NativeLoop | None:
        native = isinstance(self.layers, NativeStack) and self.embeds_projection
        if not native or self.base_head is not None:
            return None
        heads = texts = None
        if type(proposer) is CascadeProposer and type(proposer.first) is TextProposer:
            texts = TextDrafts(proposer.first.times, proposer.second_depth)
            proposer = proposer.second
        elif type(proposer) is TextProposer:
            texts, proposer = TextDrafts(proposer.times, 0), None
        if proposer is not None:
            heads = proposer.heads if type(proposer) is AttendingHeadsProposer else None
            if not (isinstance(heads, NativeAttendingHeads) and heads.has_chain):
                return None
        return NativeLoop(self.layers, self.norm, self.projection, self.positions, heads, texts)

    def _compute(self, state: TreeState, nodes: NewNodes) -> NodeOutputs:
        table = self._position_table(state.num_nodes)  # a node's depth is below this number
        places = torch.nn.functional.embedding(nodes.positions, table)
        hidden = (self._embeddings(nodes.ids) + places).to(self.dtype)
        return self._through_layers(hidden, state, nodes, state)

    def _additive_mask(self, state: TreeState, first: int) -> torch.Tensor:
        if isinstance(self.layers, NativeStack):
            return visible_bits(state.trees, first)
        return super()._additive_mask(state, first)


def pack_layers(layers: Iterable[LayerWeights], precision: Precision) -> LayerStack:
    """Pack layers for ``extend``; native kernels support pre-norm without ``concat`` only."""
    layers = [*layers]
    if precision.kernels and all(layer.norm_first and not layer.concat for layer in layers):
        return NativeStack([NativeLayer(layer) for layer in layers])
    return LayerStack([PackedLayer(layer, precision) for layer in layers])


class WhisperRuntime(CrossAttentionRuntime):
    """Whisper's decoder and the heads' block, if there is one."""

    def __init__(self, decoder: WhisperMedusaDecoder, precision: Precision):
        whisper = decoder.whisper
        super().__init__(decoder, precision, whisper.embed_tokens.weight, whisper.embed_scale)
        positions = whisper.embed_positions.weight.detach().clone()
        self.positions = positions.float() if precision.kernels else positions
        self.layers = pack_layers(map(whisper_weights, decoder.layers), precision)
        self.norm = pack_norm(whisper.layer_norm, precision)
        if self.heads is not None and self.heads.block is not None:
            self.block = pack_layers([whisper_weights(self.heads.block)], precision)


def whisper_weights(layer: torch.nn.Module) -> LayerWeights:
    """Return the modules of a decoder's ``WhisperLayer``."""
    attentions = (
        AttentionWeights(norm, part.q_proj, part.k_proj, part.v_proj, part.out_proj)
        for norm, part in (
            (layer.self_attn_layer_norm, layer.self_attn),
            (layer.encoder_attn_layer_norm, layer.encoder_attn),
        )
    )
    feed_forward = layer.final_layer_norm, layer.fc1, layer.fc2
    return LayerWeights(layer.self_attn.num_heads, *attentions, *feed_forward, GELU)


class ESPnetTransformerRuntime(CrossAttentionRuntime):
    """ESPnet's ``TransformerDecoder`` and the heads' block, if there is one."""

    def __init__(self, decoder: TransformerMedusaDecoder, precision: Precision):
        module = decoder.transformer
        embedding, encoding = module.embed
        scale = TOKEN_SCALES[type(encoding)](encoding)
        super().__init__(decoder, precision, embedding.weight, scale)
        self.encoding = copy.deepcopy(encoding).eval()
        self.positions = self._encode_positions(FIRST_POSITIONS)
        self.layers = pack_layers(map(espnet_weights, module.decoders), precision)
        self.norm = pack_norm(module.after_norm, precision) if module.normalize_before else None
        if self.heads is not None and self.heads.block is not None:
            self.block = pack_layers([espnet_weights(self.heads.block)], precision)

    def _position_table(self, count: int) -> torch.Tensor:
        with lock_of(self.encoding):  # another thread may grow the table, too
            if count > len(self.positions):
                self.positions = self._encode_positions(max(count, GROWTH * len(self.positions)))
            return self.positions

    def _encode_positions(self, count: int) -> torch.Tensor:
        """Return (count, D): the module's positional encoding added to zeros."""
        with torch.no_grad():
            return self.encoding(self.table.new_zeros(1, count, self.table.size(1)))[0]


def espnet_weights(layer: DecoderLayer) -> LayerWeights:
    """Return the modules of ESPnet's DecoderLayer."""
    attentions = layer.self_attn, layer.src_attn
    outputs = [attention.linear_out for attention in attentions]
    if layer.concat_after:
        outputs = map(merge_concatenation, (layer.concat_linear1, layer.concat_linear2), outputs)
    attentions = (
        AttentionWeights(norm, part.linear_q, part.linear_k, part.linear_v, output)
        for norm, part, output in zip((layer.norm1, layer.norm2), attentions, outputs, strict=True)
    )
    feed_forward = layer.norm3, layer.feed_forward.w_1, layer.feed_forward.w_2
    kind = {"norm_first": layer.normalize_before, "concat": layer.concat_after}
    return LayerWeights(layer.self_attn.h, *attentions, *feed_forward, RELU, **kind)


@torch.no_grad()
def merge_concatenation(concat_linear: torch.nn.Linear, output: torch.nn.Linear) -> torch.nn.Linear:
    """Return ``concat_linear([x, output(y)])`` as one layer from [x, y], 2 D to D, rounded once."""
    of_input, of_output = concat_linear.weight.double().chunk(2, dim=1)
    weight = torch.cat([of_input, of_output @ output.weight.double()], dim=1)
    bias = concat_linear.bias.double() + of_output @ output.bias.double()
    merged = copy.deepcopy(concat_linear)
    merged.weight.copy_(weight)
    merged.bias.copy_(bias)
    return merged
