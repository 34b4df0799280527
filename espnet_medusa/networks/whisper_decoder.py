"""Whisper's decoder with Medusa heads, for training in ESPnet."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.nn.functional import dropout

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import build_options
from espnet_medusa.networks.heads import NO_HEADS, Trunk
from espnet_medusa.networks.masks import causal_mask, padding_mask
from espnet_medusa.networks.multi_token_decoder import HiddenStates, MultiTokenDecoder
from espnet_medusa.networks.whisper.pretrained import DECODER, build_network
from espnet_medusa.networks.whisper.sizes import (
    DECODER_SIZES,
    check_alignment,
    check_ids,
    options_of_config,
)
from espnet_medusa.networks.whisper.token_types import asr_sh_options
from espnet_medusa.networks.whisper_modules import WhisperDecoder, WhisperLayer, decoder_layer


@dataclass(frozen=True)
class DecoderOptions:
    """``decoder_conf`` of ``decoder: whisper_medusa``; sizes are ignored with ``whisper_model``."""

    whisper_model: str | None = None  # hub name, folder, OpenAI .pt file; docs/decode.md
    num_blocks: int = 4
    attention_heads: int = 6
    linear_units: int = 1536
    max_target_positions: int = 448
    dropout_rate: float = 0.0
    heads: str = NO_HEADS  # none, linear, block, recurrent, attending, projection, latent
    heads_conf: dict | None = field(default_factory=dict)
    keep_original_last_layer: bool = False  # frozen copy, as teacher of the KL loss
    # Pairs of layer and head for word timestamps; none: all heads of the upper half of layers
    alignment_heads: list[list[int]] = field(default_factory=list)
    # Lists of the converted checkpoint; none: Whisper's
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None
    end_tokens: list[int] = field(default_factory=list)  # that also end a text
    # By search (greedy, beam): defaults of draft options in decode configs
    draft_conf: dict | None = field(default_factory=dict)


class WhisperMedusaDecoder(MultiTokenDecoder):
    """Whisper's decoder with Medusa heads; ``options`` are fields of ``DecoderOptions``.

    Raise InputError for an unknown option or value, or a size other than ``encoder_output_size``.
    """

    network = "whisper"
    layers_name = "whisper.layers"

    def __init__(self, vocab_size: int, encoder_output_size: int, **options):
        super().__init__()
        options = build_options(DecoderOptions, options, "decoder_conf")
        sizes = {"vocab_size": vocab_size, "d_model": encoder_output_size}
        self.whisper = build_network(WhisperDecoder, DECODER, options, DECODER_SIZES, **sizes)
        self.alignment_heads = options.alignment_heads
        self.suppressed = {
            "suppress_tokens": options.suppress_tokens,
            "begin_suppress_tokens": options.begin_suppress_tokens,
        }
        self.end_tokens = check_ids(options.end_tokens, vocab_size, "decoder_conf.end_tokens")
        config = self.whisper.config
        if config.vocab_size != vocab_size:
            raise InputError(
                f"token_list has {vocab_size} tokens, but decoder_conf.whisper_model has "
                f"{config.vocab_size}; use the vocabulary that belongs to the model: asr.sh "
                f"{asr_sh_options(config.vocab_size, options.whisper_model)}"
            )
        if config.d_model != encoder_output_size:
            where = f"decoder_conf: hidden size {config.d_model}"
            raise InputError(f"{where}; allowed: the encoder's, {encoder_output_size}")
        check_alignment(self.alignment_heads, config, "decoder_conf.alignment_heads")
        last_layer = self.whisper.layers[-1]
        self.original_last_layer = None
        if options.keep_original_last_layer:
            self.original_last_layer = decoder_layer(self.whisper.config)
            self.original_last_layer.load_state_dict(last_layer.state_dict())
            self.original_last_layer.requires_grad_(False)
        trunk = Trunk(encoder_output_size, vocab_size, last_layer, self.norm)
        self._add_heads(options.heads, options.heads_conf, trunk)

    @property
    def conf(self) -> dict[str, int]:
        return options_of_config(self.whisper.config, DECODER_SIZES)

    def max_depth(self, frames: int) -> int:
        return self.whisper.config.max_target_positions

    def hidden_states(self, encoder_out, encoder_out_lens, tokens, branches=1) -> HiddenStates:
        hidden = self._embed(tokens, branches)
        run = _layer_runner(hidden, encoder_out, encoder_out_lens, branches)
        return self._through_layers(hidden, run, encoder_out, encoder_out_lens)

    def _embed(self, tokens: torch.Tensor, branches: int = 1) -> torch.Tensor:
        """Return embeddings with positions; arguments as in ``hidden_states``."""
        positions = self.whisper.embed_positions.weight[: tokens.size(1) // branches]
        hidden = self.embed_tokens(tokens) + positions.repeat(branches, 1)
        return dropout(hidden, self.whisper.config.dropout, self.whisper.embed_tokens.training)

    def cross_attention(
        self, encoder_out: torch.Tensor, encoder_out_lens: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Return last hidden states (B, L, D), and each layer's queries and keys.

        These are the results of ``WhisperAttention.project``; arguments as in ``hidden_states``.
        """
        hidden, layers = self._embed(tokens), []
        causal, mask = (
            causal_mask(tokens.size(1), hidden),
            padding_mask(encoder_out, encoder_out_lens),
        )
        for layer in self.layers:
            hidden, *queries_keys = layer.decode(hidden, causal, encoder_out, mask)
            layers.append(tuple(queries_keys))
        return self.norm(hidden), layers

    @property
    def cross_projections(self) -> tuple[int, torch.nn.Module, torch.nn.Module]:
        attention = self.layers[-1].encoder_attn
        return attention.num_heads, attention.k_proj, attention.v_proj

    def _run_block(self, hidden, encoder_out, encoder_out_lens) -> torch.Tensor:
        return _layer_runner(hidden, encoder_out, encoder_out_lens)(self.heads.block, hidden)

    @torch.no_grad()
    def original_hidden(
        self,
        last_layer_input: torch.Tensor,
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
    ) -> torch.Tensor:
        """Compute last hidden states (B, L, D) with the original last layer, without gradients.

        ``last_layer_input`` is that of ``hidden_states``. Needs ``keep_original_last_layer``.
        """
        run = _layer_runner(last_layer_input, encoder_out, encoder_out_lens)
        return self.norm(run(self.original_last_layer, last_layer_input))

    @property
    def norm(self) -> torch.nn.Module:
        return self.whisper.layer_norm

    def embed_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.whisper.embed_tokens(tokens) * self.whisper.embed_scale

    @property
    def projection(self) -> torch.Tensor:
        return self.whisper.embed_tokens.weight


def _layer_runner(
    hidden: torch.Tensor,
    encoder_out: torch.Tensor,
    encoder_out_lens: torch.Tensor,
    branches: int = 1,
) -> Callable[[WhisperLayer, torch.Tensor], torch.Tensor]:
    """Return a function that runs a layer on whole sequences like ``hidden`` (B, N L, D)."""
    causal = causal_mask(hidden.size(1) // branches, hidden, branches)
    encoder_out_mask = padding_mask(encoder_out, encoder_out_lens)
    return lambda layer, hidden: layer(hidden, causal, encoder_out, encoder_out_mask)
