"""A model independent of formats: sizes, tensors, text, and the source's JSON files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import WhisperConfig

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.convert.names import COUNTS, DECODER, ENCODER, HEADS, ORIGINAL_LAYER
from espnet_medusa.networks.heads import NO_HEADS, HeadOptions, Heads, Trunk, build_heads
from espnet_medusa.networks.whisper.sizes import network_config
from espnet_medusa.networks.whisper.text import Text
from espnet_medusa.networks.whisper.tokens import TRANSCRIBE
from espnet_medusa.networks.whisper_encoder import WHISPER_WINDOW
from espnet_medusa.networks.whisper_modules import WhisperDecoder, WhisperEncoder, decoder_layer

CONFIG = "config.json"
GENERATION = "generation_config.json"
FEATURES = "preprocessor_config.json"
RECORDS = (CONFIG, GENERATION, FEATURES)
DROP_BASE_HEAD = "give --drop_base_head true, which changes the model's text"


@dataclass(frozen=True)
class Architecture:
    """Sizes that determine the model's tensors."""

    whisper: WhisperConfig  # sizes of encoder and decoder
    heads: str = NO_HEADS  # ``none``, or one of ``HEAD_TYPES``
    head_options: HeadOptions = field(default_factory=HeadOptions)  # sizes of the heads
    original_last_layer: bool = False  # whether there is a frozen copy of the last decoder layer

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return every tensor by our name, without storage (meta device)."""
        with torch.device("meta"):
            config = network_config(self.whisper, 0.0)
            encoder, decoder = WhisperEncoder(config), WhisperDecoder(config)
        modules = {ENCODER: encoder, DECODER: decoder, HEADS: self.build_heads()}
        if self.original_last_layer:
            modules[ORIGINAL_LAYER] = decoder.layers[-1]
        return {
            prefix + name: tensor
            for prefix, module in modules.items()
            if module is not None
            for name, tensor in module.state_dict().items()
        }

    def build_heads(self) -> Heads | None:
        """Return the heads, their weights without storage (meta device)."""
        with torch.device("meta"):
            config = network_config(self.whisper, 0.0)
            last = decoder_layer(config)
            norm = torch.nn.LayerNorm(config.d_model)
            trunk = Trunk(config.d_model, config.vocab_size, last, norm)
            return build_heads(self.heads, trunk, self.head_options)


@dataclass(frozen=True)
class CtcBranch:
    """The CTC branch of an experiment, which other formats do not have."""

    weights: Mapping[str, torch.Tensor]  # our name to tensor
    model_conf: Mapping[str, Any]  # the fields of the experiment's ``model_conf`` that define it
    ctc_conf: Mapping[str, Any]  # options of ESPnet's CTC


@dataclass(frozen=True)
class PromptOptions:
    """``preprocessor_conf`` of ``preprocessor: whisper``."""

    language: str | None = "en"
    task: str = TRANSCRIBE


@dataclass(frozen=True)
class Checkpoint:
    name: str  # the source, for messages
    architecture: Architecture  # sizes and heads
    weights: Mapping[str, torch.Tensor]  # by our names, with token counts of the heads if known
    text: Text  # vocabulary and tokenizer
    records: Mapping[str, dict] = field(default_factory=dict)  # JSON files of the source, by name
    draft_conf: Mapping[str, dict] = field(default_factory=dict)  # recommended draft options
    ctc: CtcBranch | None = None
    prompt: PromptOptions = PromptOptions()
    window: str = WHISPER_WINDOW  # ``encoder_conf.window``

    def without_heads(self) -> "Checkpoint":
        """Return a copy without heads; raise InputError if its text differs."""
        if self.has_base_head:
            raise InputError(
                f"{self.name}: base_head: true; Whisper has no residual layers before its "
                f"vocabulary projection; {DROP_BASE_HEAD}"
            )
        parts = HEADS, ORIGINAL_LAYER, COUNTS
        weights = {name: part for name, part in self.weights.items() if not name.startswith(parts)}
        architecture = Architecture(self.architecture.whisper)
        return replace(self, architecture=architecture, weights=weights, draft_conf={})

    def without_base_head(self) -> "Checkpoint":
        """Return a copy whose base head is only the vocabulary projection; its logits differ."""
        options = replace(self.architecture.head_options, base_head=False)
        architecture, base = replace(self.architecture, head_options=options), f"{HEADS}base."
        weights = {name: value for name, value in self.weights.items() if not name.startswith(base)}
        return replace(self, architecture=architecture, weights=weights)

    @property
    def has_base_head(self) -> bool:
        """Whether the base head has residual layers."""
        return self.architecture.heads != NO_HEADS and self.architecture.head_options.base_head


def check_whisper_fields(fields: Mapping, where: str) -> None:
    """Raise InputError if a field of ``config.json`` has another value than in every Whisper."""
    usual = {"activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True}
    for name, value in usual.items():
        if fields.get(name, value) != value:
            raise InputError(
                f"{where}: {name}: {fields[name]}; allowed: {value}, as in every Whisper; this "
                "model cannot be converted"
            )
