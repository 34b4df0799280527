"""A model between two formats: sizes, tensors, text, and what its source said besides."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperDecoder, WhisperEncoder

from espnet_medusa.convert.names import DECODER, ENCODER, ORIGINAL_LAYER
from espnet_medusa.errors import InputError
from espnet_medusa.model.heads import NO_HEADS, HeadOptions, Trunk, build_heads
from espnet_medusa.whisper.sizes import decoder_config, encoder_config
from espnet_medusa.whisper.text import Text

CONFIG = "config.json"
GENERATION = "generation_config.json"
FEATURES = "preprocessor_config.json"
RECORDS = (CONFIG, GENERATION, FEATURES)


@dataclass(frozen=True)
class Architecture:
    """What decides which tensors there are.

    Attributes:
        whisper: Sizes of encoder and decoder.
        heads: ``none`` or a kind of heads.
        head_options: Their sizes.
        original_last_layer: Whether a frozen copy of the last decoder layer is kept.
    """

    whisper: WhisperConfig
    heads: str = NO_HEADS
    head_options: HeadOptions = field(default_factory=HeadOptions)
    original_last_layer: bool = False

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by our name, as a shape without storage."""
        with torch.device("meta"):
            encoder = WhisperEncoder(encoder_config(self.whisper, 0.0))
            decoder = WhisperDecoder(decoder_config(self.whisper, 0.0))
            last = decoder.layers[-1]
            sizes = self.whisper.d_model, self.whisper.vocab_size
            trunk = Trunk(*sizes, last, decoder.layer_norm)
            heads = build_heads(self.heads, trunk, self.head_options)
        modules = {ENCODER: encoder, DECODER: decoder, "decoder.heads.": heads}
        if self.original_last_layer:
            modules[ORIGINAL_LAYER] = last
        return {
            prefix + name: tensor
            for prefix, module in modules.items()
            if module is not None
            for name, tensor in module.state_dict().items()
        }


@dataclass(frozen=True)
class Checkpoint:
    """A model in no format.

    Attributes:
        name: Its source, for messages.
        architecture: Sizes and heads.
        weights: Our name to tensor, complete.
        text: Vocabulary and tokenizer.
        records: The source's own JSON files by name, for a way back.
    """

    name: str
    architecture: Architecture
    weights: Mapping[str, torch.Tensor]
    text: Text
    records: Mapping[str, dict] = field(default_factory=dict)

    def without_base_head(self) -> "Checkpoint":
        """The same whose base head is the vocabulary projection alone: other logits."""
        architecture = self.architecture
        options = replace(architecture.head_options, base_head=False)
        kept = {
            name: value
            for name, value in self.weights.items()
            if not name.startswith("decoder.heads.base.")
        }
        return replace(self, architecture=replace(architecture, head_options=options), weights=kept)

    @property
    def has_base_head(self) -> bool:
        """Whether the base head has residual layers of its own."""
        return self.architecture.heads != NO_HEADS and self.architecture.head_options.base_head


def check_whisper_fields(fields: Mapping, where: str) -> None:
    """Refuse a Whisper that is computed otherwise than all Whispers.

    Args:
        fields: Of its ``config.json``.
        where: That file, for messages.

    Raises:
        InputError: Names the field.
    """
    usual = {"activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True}
    for name, value in usual.items():
        if fields.get(name, value) != value:
            raise InputError(
                f"{where}: {name}: {fields[name]}; allowed: {value}, as every Whisper has it; this "
                "model cannot be converted"
            )
