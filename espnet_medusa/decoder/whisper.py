"""Whisper's decoder with Medusa heads, as ESPnet trains it and as searches call it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from espnet2.asr.decoder.abs_decoder import AbsDecoder
from transformers.models.whisper.modeling_whisper import WhisperDecoder

from espnet_medusa.decoder.tree_scorer import TreeScorer
from espnet_medusa.errors import InputError
from espnet_medusa.heads import NO_HEADS, HeadOptions, build_heads
from espnet_medusa.masks import causal_mask, padding_mask
from espnet_medusa.options import build_options
from espnet_medusa.pretrained import DECODER, open_whisper
from espnet_medusa.runtime.captured import CapturedWhisperRuntime
from espnet_medusa.runtime.precision import resolve_precision
from espnet_medusa.runtime.whisper import WhisperRuntime
from espnet_medusa.whisper_config import (
    DECODER_SIZES,
    config_of_options,
    decoder_config,
    decoder_sizes,
)

TOKEN_COUNTS = "token_counts"


class HiddenStates(NamedTuple):
    """What whole sequences give: last hidden states, and what the heads start from.

    Attributes:
        hidden: (B, L, D).
        head_input: (B, L, D); ``hidden`` itself without an own block.
        last_layer_input: (B, L, D), which the original last layer reads, too.
    """

    hidden: torch.Tensor
    head_input: torch.Tensor
    last_layer_input: torch.Tensor


@dataclass(frozen=True)
class DecoderOptions:
    """``decoder_conf`` of ``decoder: whisper_medusa``; sizes count only without a model."""

    whisper_model: str | None = None  # hub name, folder in Hugging Face format, OpenAI .pt file
    num_blocks: int = 4
    attention_heads: int = 6
    linear_units: int = 1536
    max_target_positions: int = 448
    dropout_rate: float = 0.0
    heads: str = NO_HEADS  # none, linear, block, recurrent
    heads_conf: dict = field(default_factory=dict)
    keep_original_last_layer: bool = False  # frozen copy, the teacher of a fine-tuned last layer


class WhisperMedusaDecoder(AbsDecoder, TreeScorer):
    """Whisper decoder on transformers' modules, with Medusa heads on top.

    Three views of the same weights: ``forward`` (teacher-forced, trained), ``runtime`` (token tree
    with cached keys and values) and ESPnet's scorer (``TreeScorer``).

    Args:
        vocab_size: V.
        encoder_output_size: D of the memory; must be the decoder's own.
        options: Fields of ``DecoderOptions``.

    Raises:
        InputError: An option or head type is not known, or sizes do not fit.
    """

    def __init__(self, vocab_size: int, encoder_output_size: int, **options):
        super().__init__()
        options = build_options(DecoderOptions, options, "decoder_conf")
        if options.whisper_model is not None:
            pretrained = open_whisper(options.whisper_model)
            config = decoder_config(pretrained.config, options.dropout_rate)
            self.whisper = pretrained.build(WhisperDecoder, config, DECODER)
        else:
            sizes = {"vocab_size": vocab_size, "d_model": encoder_output_size}
            config = config_of_options(options, DECODER_SIZES, options.dropout_rate, **sizes)
            self.whisper = WhisperDecoder(config)
        self._check_sizes(vocab_size, encoder_output_size)
        last_layer = self.whisper.layers[-1]
        head_options = build_options(HeadOptions, options.heads_conf, "decoder_conf.heads_conf")
        self.heads = build_heads(options.heads, encoder_output_size, head_options, last_layer)
        self.original_last_layer = None
        if options.keep_original_last_layer:
            self.original_last_layer = type(last_layer)(self.whisper.config, len(self.layers) - 1)
            self.original_last_layer.load_state_dict(last_layer.state_dict())
            self.original_last_layer.requires_grad_(False)
        if self.heads is not None:
            # Of the labels that trained the heads; the most frequent ones are worth drafting.
            counts = torch.zeros(vocab_size, dtype=torch.long)
            self.register_buffer(TOKEN_COUNTS, counts)
        self.register_load_state_dict_pre_hook(_let_copies_follow)
        self.register_load_state_dict_pre_hook(_count_from_zero)

    @property
    def conf(self) -> dict[str, int]:
        """The part of ``decoder_conf`` that says the same without ``whisper_model``."""
        return decoder_sizes(self.whisper.config)

    def _check_sizes(self, vocab_size: int, encoder_output_size: int) -> None:
        config = self.whisper.config
        if config.vocab_size != vocab_size:
            raise InputError(
                f"token_list has {vocab_size} tokens, decoder_conf.whisper_model "
                f"{config.vocab_size}: use the vocabulary that belongs to the model"
            )
        if config.d_model != encoder_output_size:
            raise InputError(
                f"decoder hidden size {config.d_model} differs from the encoder's "
                f"{encoder_output_size}; they must be the same"
            )

    # Teacher-forced view: transformers' own layers.

    def forward(
        self,
        hs_pad: torch.Tensor,
        hlens: torch.Tensor,
        ys_in_pad: torch.Tensor,
        ys_in_lens: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Base logits of whole token sequences, ESPnet's contract.

        Args:
            hs_pad: (B, S, D) memory.
            hlens: (B,) its frames.
            ys_in_pad: (B, L) input tokens.
            ys_in_lens: (B,) their number.

        Returns:
            Logits (B, L, V) and ``ys_in_lens``.
        """
        return self.logits(self.hidden_states(hs_pad, hlens, ys_in_pad).hidden), ys_in_lens

    def hidden_states(
        self, memory: torch.Tensor, memory_lengths: torch.Tensor, tokens: torch.Tensor
    ) -> HiddenStates:
        """Hidden states of whole sequences, for the base head and for the heads.

        Args:
            memory: (B, S, D).
            memory_lengths: (B,).
            tokens: (B, L); what stands behind a sequence's end does not matter to it.
        """
        hidden = self._embed_sequence(tokens)
        below = _run_layers(self.layers[:-1], hidden, memory, memory_lengths)
        hidden = _run_layers(self.layers[-1:], below, memory, memory_lengths)
        hidden = self.whisper.layer_norm(hidden)
        head_input = hidden
        if self.heads is not None and self.heads.block is not None:
            head_input = _run_layers([self.heads.block], hidden, memory, memory_lengths)
        return HiddenStates(hidden, head_input, below)

    @torch.no_grad()
    def original_hidden(
        self, last_layer_input: torch.Tensor, memory: torch.Tensor, memory_lengths: torch.Tensor
    ) -> torch.Tensor:
        """Last hidden states (B, L, D) with the original last layer, for ``project``; no gradient.

        Args:
            last_layer_input: (B, L, D) of ``hidden_states``: the layers below run once for both.
            memory: (B, S, D).
            memory_lengths: (B,).

        Raises:
            InputError: No original last layer was kept.
        """
        if self.original_last_layer is None:
            raise InputError("set decoder_conf.keep_original_last_layer: true for a KL teacher")
        layers = [self.original_last_layer]
        hidden = _run_layers(layers, last_layer_input, memory, memory_lengths)
        return self.whisper.layer_norm(hidden)

    def unroll_hidden(self, outputs: HiddenStates, labels: torch.Tensor) -> list[torch.Tensor]:
        """What the vocabulary projection reads, of the base head and of the heads behind it.

        Args:
            outputs: Of ``hidden_states``.
            labels: (B, L) the token that follows each position; any token where padded.

        Returns:
            For k = 0 to K: (B, L - k, D) for the token k behind the next one.
        """
        hidden = [self.base_hidden(outputs.hidden)]
        if self.heads is not None:
            hidden += self.heads.unroll(outputs.head_input, labels, self.embed_tokens)
        return hidden

    def unroll_heads(
        self, head_input: torch.Tensor, labels: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """Logits of one head after the other, so that one can be freed before the next.

        Args:
            head_input: (B, L, D) of ``hidden_states``.
            labels: (B, L) the token that follows each position; any token where padded.

        Yields:
            For k = 1 to K: (B, L - k, V) for the token k behind the next one.
        """
        if self.heads is not None:
            for hidden in self.heads.unroll(head_input, labels, self.embed_tokens):
                yield self.project(hidden)

    def count_tokens(self, tokens: torch.Tensor) -> None:
        """Add training tokens (n,) to the counts; with several GPUs each keeps its own share."""
        self.token_counts += torch.bincount(tokens, minlength=len(self.token_counts))

    def draft_vocabulary(self, size: int, eos: int) -> torch.Tensor:
        """The most frequent training tokens, the end symbol among them: (N,) ids, ascending.

        Args:
            size: Most of them; tokens that training never saw are left out.
            eos: End symbol.

        Raises:
            InputError: The heads were trained without counting, or not at all.
        """
        counts = self.token_counts.clone() if self.num_heads else torch.zeros(1)
        if not bool(counts.any()):
            raise InputError(
                f"draft_vocab_size: {size}; this model holds no counts of training tokens; train "
                "its heads with this version, or leave draft_vocab_size out"
            )
        counts[eos] = counts.max() + 1
        seen = int((counts > 0).sum())
        return counts.topk(min(size, seen)).indices.sort().values

    # What searches call: the same weights at this moment, laid out for it.

    def runtime(self, precision: str | None = None) -> WhisperRuntime:
        """The decoder over token trees; weights that change later do not reach it.

        Args:
            precision: As the decode option ``decoder_precision``; None: the weights' own.

        Raises:
            InputError: Nothing this device computes with.
        """
        weight = self.whisper.embed_tokens.weight
        kind = CapturedWhisperRuntime if weight.device.type == "cuda" else WhisperRuntime
        return kind(self, resolve_precision(precision, weight.device, weight.dtype))

    def release(self) -> None:
        """Give back the memory of weights: what was made of them stays, nothing more can be.

        Runtimes and surrogates hold what they need themselves.
        """
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.data = tensor.new_empty(0)

    # Parts that the views share.

    @property
    def layers(self) -> torch.nn.ModuleList:
        """The decoder's own layers, without the heads' block."""
        return self.whisper.layers

    @property
    def num_heads(self) -> int:
        """K, the heads that can draft; 0 without heads."""
        return 0 if self.heads is None else self.heads.num_heads

    def _embed_sequence(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, L) tokens from position 0 on, with dropout while embeddings are trained."""
        hidden = self.embed_tokens(tokens) + self.whisper.embed_positions.weight[: tokens.size(1)]
        return torch.nn.functional.dropout(
            hidden, p=self.whisper.config.dropout, training=self.whisper.embed_tokens.training
        )

    def embed_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token embeddings without positions: (...) to (..., D)."""
        return self.whisper.embed_tokens(tokens) * self.whisper.embed_scale

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Base head: (..., D) to (..., V)."""
        return self.project(self.base_hidden(hidden))

    def base_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the vocabulary projection reads of the base head: (..., D) to (..., D)."""
        if self.heads is not None and self.heads.base is not None:
            return self.heads.base(hidden)
        return hidden

    @property
    def projection(self) -> torch.Tensor:
        """(V, D) shared vocabulary projection: the token embedding."""
        return self.whisper.embed_tokens.weight

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Through the shared vocabulary projection: (..., D) to (..., V)."""
        return torch.nn.functional.linear(hidden, self.projection)


def _run_layers(
    layers: Iterable[torch.nn.Module],
    hidden: torch.Tensor,
    memory: torch.Tensor,
    memory_lengths: torch.Tensor,
) -> torch.Tensor:
    """Whole sequences (B, L, D) through transformers' layers, teacher-forced."""
    memory_mask = padding_mask(memory, memory_lengths)
    causal = causal_mask(hidden.size(1), hidden)
    for layer in layers:
        hidden = layer(
            hidden,
            attention_mask=causal,
            encoder_hidden_states=memory,
            encoder_attention_mask=memory_mask,
            use_cache=False,
        )
    return hidden


def _let_copies_follow(decoder, state_dict, prefix, *_) -> None:
    """Weights are being loaded: copies of the last layer that they do not bring copy it anew.

    The heads' block starts as a copy of the last layer. ESPnet builds the model first and loads
    ``init_param`` into it later, so the copy made at construction is one of random weights. ESPnet
    fills what a file lacks with the model's own tensors: these are copies that it does not bring.
    """
    last = f"{prefix}whisper.layers.{len(decoder.layers) - 1}."
    copies = {"original_last_layer.": decoder.original_last_layer}
    if decoder.heads is not None:
        copies["heads.block."] = decoder.heads.block
    current = decoder.layers[-1].state_dict()
    for name, module in copies.items():
        if module is None or any(last + part not in state_dict for part in current):
            continue
        own = module.state_dict()
        incoming = {part: state_dict.get(prefix + name + part) for part in current}
        untrained = all(
            value is None
            or (value.data_ptr() == own[part].data_ptr() and torch.equal(value, current[part]))
            for part, value in incoming.items()
        )
        if untrained:
            for part in current:
                state_dict[prefix + name + part] = state_dict[last + part]


def _count_from_zero(decoder, state_dict, prefix, *_) -> None:
    """Checkpoints of heads from elsewhere, or from before tokens were counted, have no counts."""
    if hasattr(decoder, TOKEN_COUNTS):
        counts = torch.zeros_like(decoder.token_counts)
        state_dict.setdefault(prefix + TOKEN_COUNTS, counts)
