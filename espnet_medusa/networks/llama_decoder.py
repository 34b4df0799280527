"""Speech-LLaMA: a causal language model with speech embeddings as its prompt.

Multi-token Speech-LLaMA (Raj, Keren et al., arXiv 2409.08148).
"""

from dataclasses import dataclass, field

import torch

from espnet_medusa.data.errors import InputError, first_line
from espnet_medusa.data.options import build_options, check_at_least
from espnet_medusa.networks.causal_lm import config_fields, pretrained_model, scratch_model
from espnet_medusa.networks.heads import NO_HEADS, Trunk
from espnet_medusa.networks.masks import causal_mask, inside, padding_mask
from espnet_medusa.networks.multi_token_decoder import HiddenStates, MultiTokenDecoder


@dataclass(frozen=True)
class LlamaOptions:
    """``decoder_conf`` of ``decoder: speech_llama``."""

    llama_model: str | None = None  # pretrained: hub name or folder in Hugging Face format
    llama_conf: dict = field(default_factory=dict)  # from scratch: transformers' LlamaConfig
    stacked_frames: int = 3  # encoder frames per speech embedding
    dropout_rate: float = 0.0  # of speech and token embeddings
    freeze_llama: bool = False  # train adapter and heads only
    lora: dict | None = None  # peft's LoraConfig, such as {r: 8, target_modules: [q_proj, v_proj]}
    heads: str = NO_HEADS  # none, projection, latent, linear, block, recurrent
    heads_conf: dict | None = field(default_factory=dict)


class SpeechLlamaDecoder(MultiTokenDecoder):
    """Speech adapter, language model and heads; ``options`` are fields of ``LlamaOptions``.

    The input of an utterance is its speech embeddings, the start symbol and the text, at
    consecutive positions: padding of the speech is masked and has no positions. Raise InputError
    if an option has an unknown name or value, or a model cannot be loaded.
    """

    network = "llama"
    layers_name = "llama.model.layers"

    def __init__(self, vocab_size: int, encoder_output_size: int, **options):
        super().__init__()
        options = build_options(LlamaOptions, options, "decoder_conf")
        check_at_least(options.stacked_frames, 1, "decoder_conf.stacked_frames")
        if options.llama_model is None:
            self.llama = scratch_model(options.llama_conf, vocab_size)
        elif options.llama_conf:
            raise InputError("decoder_conf: llama_model and llama_conf; allowed: one of them")
        else:
            self.llama = pretrained_model(options.llama_model, vocab_size)
        hidden_size = self.llama.config.hidden_size
        self.adapter = SpeechAdapter(encoder_output_size, hidden_size, options.stacked_frames)
        self.dropout = torch.nn.Dropout(options.dropout_rate)
        self.original_last_layer = None
        trunk = Trunk(hidden_size, vocab_size, self.layers[-1])
        self._add_heads(options.heads, options.heads_conf, trunk)
        if options.freeze_llama or options.lora is not None:
            self.llama.requires_grad_(False)
        if options.lora is not None:
            _add_lora(self.llama.model, options.lora)

    @property
    def conf(self) -> dict:
        return {"llama_conf": config_fields(self.llama.config)}

    @property
    def projection(self) -> torch.Tensor:
        return self.llama.lm_head.weight

    @property
    def norm(self) -> torch.nn.Module:
        return self.llama.model.norm

    def max_depth(self, frames: int) -> int:
        return self.llama.config.max_position_embeddings - self.adapter.lengths(frames)

    def embed_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.llama.model.embed_tokens(tokens)

    def hidden_states(self, encoder_out, encoder_out_lens, tokens, branches=1) -> HiddenStates:
        speech, lengths = self.adapter(encoder_out, encoder_out_lens)
        hidden = self.dropout(torch.cat([speech, self.embed_tokens(tokens)], dim=1))
        num_speech, length = speech.size(1), tokens.size(1) // branches
        in_speech = torch.arange(num_speech, device=tokens.device).expand(len(tokens), -1)
        in_text = torch.arange(length, device=tokens.device).repeat(branches)
        positions = torch.cat([in_speech, lengths[:, None] + in_text], dim=1)
        mask = causal_mask(length, hidden, branches, num_speech)
        padding = padding_mask(speech, lengths)
        if padding is not None:
            padding = torch.nn.functional.pad(padding, (0, tokens.size(1)))
            mask = torch.minimum(mask, padding)
        rotary = self.llama.model.rotary_emb(hidden, positions)

        def run(layer: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
            return layer(hidden, attention_mask=mask, position_embeddings=rotary, use_cache=False)

        outputs = self._through_layers(hidden, run, encoder_out, encoder_out_lens)
        return HiddenStates(*(part[:, num_speech:] for part in outputs[:3]))


class SpeechAdapter(torch.nn.Module):
    """Stack every few encoder frames and project them (Fathullah et al., arXiv 2307.11795)."""

    def __init__(self, encoder_size: int, hidden_size: int, stacked_frames: int):
        super().__init__()
        self.stacked_frames = stacked_frames
        self.linear = torch.nn.Linear(stacked_frames * encoder_size, hidden_size)

    def lengths(self, frames):
        """Return the number of embeddings for these frames, an int or a tensor."""
        return (frames + self.stacked_frames - 1) // self.stacked_frames

    def stack(self, encoder_out: torch.Tensor, encoder_out_lens: torch.Tensor) -> torch.Tensor:
        """Stack (B, S, encoder_size) to (B, S', stacked_frames * encoder_size); padding is 0."""
        encoder_out = encoder_out.masked_fill(
            ~inside(encoder_out, encoder_out_lens)[:, :, None], 0.0
        )
        missing = -encoder_out.size(1) % self.stacked_frames
        encoder_out = torch.nn.functional.pad(encoder_out, (0, 0, 0, missing))
        return encoder_out.unflatten(1, (-1, self.stacked_frames)).flatten(2)

    def forward(
        self, encoder_out: torch.Tensor, encoder_out_lens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Map (B, S, encoder_size) of (B,) frames to (B, S', D) of (B,) embeddings."""
        return self.linear(self.stack(encoder_out, encoder_out_lens)), self.lengths(
            encoder_out_lens
        )


def _add_lora(model: torch.nn.Module, lora: dict) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise InputError("decoder_conf.lora needs peft: pip install espnet_medusa[lora]") from error
    try:
        inject_adapter_in_model(LoraConfig(**lora), model)
    except (TypeError, ValueError) as error:
        raise InputError(f"decoder_conf.lora: {first_line(error)}") from error
