"""The base class of trained decoders with Medusa heads."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from espnet2.asr.decoder.abs_decoder import AbsDecoder

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import build_options
from espnet_medusa.networks.heads import HeadOptions, Heads, Trunk, build_heads
from espnet_medusa.networks.heads.autoregressive import MOMENTS
from espnet_medusa.networks.heads.base import CrossKeysValues
from espnet_medusa.networks.masks import padding_mask

TOKEN_COUNTS = "token_counts"
STATISTICS = TOKEN_COUNTS, f"heads.{MOMENTS}"  # of training; a checkpoint may lack them


class HiddenStates(NamedTuple):
    hidden: torch.Tensor  # (B, L, D) last hidden states
    head_input: torch.Tensor  # (B, L, D) input of the heads; equals ``hidden`` without a block
    last_layer_input: torch.Tensor  # (B, L, D)
    cross_keys_values: CrossKeysValues | None = None  # for heads with cross-attention; else None


class MultiTokenDecoder(AbsDecoder):
    """A decoder with heads that predict the tokens after the next one.

    This module computes whole sequences with teacher forcing, for training. For searches,
    ``runtime.build`` converts it to a decoder over token trees with cached keys and values.

    Attributes:
        network: Name of the attribute with the network below the heads.
        layers_name: Name of the module with the layers.
        heads: The heads, or None.
        original_last_layer: Frozen copy of the last layer (the teacher of a KL loss), or None.
        cross_projections: The last layer's number of heads, and projections to keys and to values,
            of cross-attention; missing without cross-attention.
    """

    network: str
    layers_name: str
    heads: Heads | None
    original_last_layer: torch.nn.Module | None
    cross_projections: tuple[int, torch.nn.Module, torch.nn.Module]

    @property
    def layers(self) -> torch.nn.ModuleList:
        """The decoder's layers, without the heads' block."""
        return self.get_submodule(self.layers_name)

    @property
    @abstractmethod
    def conf(self) -> dict:
        """Options of ``decoder_conf`` that replace the name of a pretrained model."""

    @property
    @abstractmethod
    def projection(self) -> torch.Tensor:
        """(V, D) vocabulary projection of the base head."""

    @property
    @abstractmethod
    def norm(self) -> torch.nn.Module:
        """Normalization after the last layer."""

    @abstractmethod
    def max_depth(self, frames: int) -> int:
        """Return the number of positions for start symbol and text after ``frames`` frames."""

    @abstractmethod
    def embed_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return token embeddings without positions: (...) to (..., D)."""

    @abstractmethod
    def hidden_states(
        self,
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        tokens: torch.Tensor,
        branches: int = 1,
    ) -> HiddenStates:
        """Compute hidden states of whole sequences.

        Args:
            encoder_out: (B, S, D) encoder output.
            encoder_out_lens: (B,).
            tokens: (B, N L); padding at the end does not change earlier states.
            branches: N sequences per utterance, one after the other; none attends to another.
        """

    # Some subclasses implement:

    @property
    def projection_bias(self) -> torch.Tensor | None:
        """(V,) bias of all vocabulary projections, or None."""
        return None

    def rename_weights(self, weights: dict[str, torch.Tensor], prefix: str, *_) -> None:
        """Rename weights of a decoder without heads to this decoder's names, in place."""

    def last_layer_name(self, name: str) -> str:
        """Return the name of the last layer's weight that initializes a heads' weight."""
        return name

    def project_encoder_out(
        self, encoder_out: torch.Tensor, encoder_out_lens: torch.Tensor
    ) -> CrossKeysValues:
        """Return the last layer's cross-attention keys and values of encoder output (B, S, D)."""
        num_heads, *projections = self.cross_projections
        keys_values = (
            project(encoder_out).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for project in projections
        )
        return CrossKeysValues(*keys_values, padding_mask(encoder_out, encoder_out_lens))

    def _run_block(
        self, hidden: torch.Tensor, encoder_out: torch.Tensor, encoder_out_lens: torch.Tensor
    ) -> torch.Tensor:
        """Run the heads' block on last hidden states (B, L, D)."""
        raise InputError(f"{type(self).__name__}: its heads cannot be trained on cached states")

    def _add_heads(self, kind: str, heads_conf: dict, trunk: Trunk) -> None:
        options = build_options(HeadOptions, heads_conf, "decoder_conf.heads_conf")
        self.heads = build_heads(kind, trunk, options)
        if self.heads is not None:
            # Counts of the labels that the heads were trained on, for `draft_vocabulary`.
            self.register_buffer(TOKEN_COUNTS, torch.zeros(trunk.vocab_size, dtype=torch.long))
        self.register_load_state_dict_pre_hook(type(self).rename_weights)
        self.register_load_state_dict_pre_hook(_copy_last_layer)
        self.register_load_state_dict_pre_hook(_add_statistics)

    def release(self) -> None:
        """Free the module's weights; runtimes and proposers can still be used."""
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.data = tensor.new_empty(0)

    def _through_layers(
        self,
        hidden: torch.Tensor,
        run: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor],
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
    ) -> HiddenStates:
        """Run embedded sequences (B, N L, D) through layers and heads' block, each by ``run``."""
        for layer in self.layers:
            last_layer_input, hidden = hidden, run(layer, hidden)
        hidden = head_input = self.norm(hidden)
        if self.heads is not None and self.heads.block is not None:
            head_input = run(self.heads.block, hidden)
        cross_keys_values = self._cross_keys_values(encoder_out, encoder_out_lens)
        return HiddenStates(hidden, head_input, last_layer_input, cross_keys_values)

    def from_states(
        self,
        hidden: torch.Tensor,
        encoder_out: torch.Tensor | None,
        encoder_out_lens: torch.Tensor | None,
    ) -> HiddenStates:
        """Compute ``hidden_states``, except ``last_layer_input``, from cached last hidden states.

        Raise InputError if the heads require encoder output (B, S, D) and it is None, or if the
        decoder does not support cached states (B, L, D).
        """
        head_input, block = hidden, None if self.heads is None else self.heads.block
        if encoder_out is None and (block is not None or self._uses_cross_attention):
            raise InputError("memory: missing; these heads require it: cache it with the states")
        if block is not None:
            head_input = self._run_block(hidden, encoder_out, encoder_out_lens)
        cross_keys_values = self._cross_keys_values(encoder_out, encoder_out_lens)
        return HiddenStates(hidden, head_input, hidden, cross_keys_values)

    @property
    def _uses_cross_attention(self) -> bool:
        return self.heads is not None and self.heads.uses_cross_attention

    def _cross_keys_values(
        self, encoder_out: torch.Tensor | None, encoder_out_lens: torch.Tensor | None
    ) -> CrossKeysValues | None:
        return (
            self.project_encoder_out(encoder_out, encoder_out_lens)
            if self._uses_cross_attention
            else None
        )

    def forward(self, hs_pad, hlens, ys_in_pad, ys_in_lens) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the base head's logits (B, L, V) of whole sequences, and ``ys_in_lens``.

        Arguments as in ESPnet: encoder output (B, S, D), frames (B,), tokens (B, L), lengths (B,).
        """
        return self.logits(self.hidden_states(hs_pad, hlens, ys_in_pad).hidden), ys_in_lens

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the base head's logits: (..., D) to (..., V)."""
        return self.project(self.base_hidden(hidden))

    def base_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the input of the base head's vocabulary projection: (..., D) to (..., D)."""
        if self.heads is not None and self.heads.base is not None:
            return self.heads.base(hidden)
        return hidden

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the base head's vocabulary projection: (..., D) to (..., V)."""
        return torch.nn.functional.linear(hidden, self.projection, self.projection_bias)

    @property
    def num_heads(self) -> int:
        """K, the number of heads besides the base head; 0 without heads."""
        return 0 if self.heads is None else self.heads.num_heads

    @property
    def projections(self) -> list[torch.Tensor]:
        """(V, D) vocabulary projections of the base head and the K heads, often shared."""
        shared = self.projection
        return [shared] if self.heads is None else [shared, *self.heads.projections(shared)]

    def unroll_hidden(self, outputs: HiddenStates, labels: torch.Tensor) -> list[torch.Tensor]:
        """Return the inputs (B, L - k, D) of the vocabulary projections of heads k = 0 to K.

        Head 0 is the base head. ``labels`` are those of ``Heads.unroll``.
        """
        hidden = [self.base_hidden(outputs.hidden)]
        if self.heads is not None:
            hidden += self.heads.unroll(
                outputs.head_input, labels, self.embed_tokens, outputs.cross_keys_values
            )
        return hidden

    def unroll_heads(self, outputs: HiddenStates, labels: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the logits (B, L - k, V) of heads k = 1 to K; arguments as in ``unroll_hidden``."""
        unrolled = self.unroll_hidden(outputs, labels)
        for hidden, projection in zip(unrolled[1:], self.projections[1:], strict=True):
            yield torch.nn.functional.linear(hidden, projection, self.projection_bias)

    def count_tokens(self, tokens: torch.Tensor) -> None:
        """Add training tokens (n,) to the counts; each of several GPUs counts its own share."""
        self.token_counts += torch.bincount(tokens, minlength=len(self.token_counts))

    def draft_vocabulary(self, size: int, eos: int) -> torch.Tensor:
        """Return the most frequent training tokens and ``eos``: (N,) ids, ascending, N <= size.

        Raise InputError if the model has no counts.
        """
        counts = self.token_counts.clone() if self.num_heads else torch.zeros(1)
        if not bool(counts.any()):
            raise InputError(
                f"draft_vocab_size: {size}; this model has no counts of training tokens; train "
                "its heads with this version, or remove draft_vocab_size"
            )
        counts[eos] = counts.max() + 1
        seen = int((counts > 0).sum())
        return counts.topk(min(size, seen)).indices.sort().values


def _copy_last_layer(decoder, state_dict, prefix, *_) -> None:
    """Fill in missing copies of the last layer in a state dict from that layer's weights.

    The heads' block or layer starts as a copy of the last layer. ESPnet loads ``init_param`` after
    it has built the model, so that the model's copy has random weights. ESPnet also adds the
    model's own tensors to a state dict that lacks them; these count as missing.
    """
    last = f"{prefix}{decoder.layers_name}.{len(decoder.layers) - 1}."
    copies = {"original_last_layer.": decoder.original_last_layer}
    if decoder.heads is not None:
        copies["heads.block."] = decoder.heads.block
        copies["heads.layer."] = decoder.heads.layer
    current = decoder.layers[-1].state_dict()
    for name, module in copies.items():
        if module is None or any(last + part not in state_dict for part in current):
            continue
        weights = module.state_dict()  # `heads.layer` has no self-attention
        sources = {part: decoder.last_layer_name(part) for part in weights}
        incoming = {part: state_dict.get(prefix + name + part) for part in weights}
        missing = all(
            value is None
            or (
                value.data_ptr() == weights[part].data_ptr()
                and torch.equal(value, current[sources[part]])
            )
            for part, value in incoming.items()
        )
        if missing:
            for part, source in sources.items():
                state_dict[prefix + name + part] = state_dict[last + source]


def _add_statistics(decoder, state_dict, prefix, *_) -> None:
    """Add zeros to a state dict without statistics of training, such as that of converted heads."""
    for name, value in decoder.named_buffers():
        if name in STATISTICS:
            state_dict.setdefault(prefix + name, torch.zeros_like(value))
