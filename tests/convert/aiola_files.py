"""Random models in aiola's file format, and what they compute, on transformers' modules alone."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer

VOCAB_SIZE = 40
EOS, START, NO_TIMESTAMPS = 37, 38, 39
SIZES = {
    "vocab_size": VOCAB_SIZE, "num_mel_bins": 80, "d_model": 16, "encoder_layers": 1,
    "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "max_source_positions": 50,
    "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 20,
    "max_target_positions": 24, "eos_token_id": EOS, "pad_token_id": EOS, "bos_token_id": EOS,
    "decoder_start_token_id": START, "begin_suppress_tokens": None,
}  # fmt: skip


@dataclass(frozen=True)
class AiolaModel:
    """A random model in the form of aiola's training code."""

    whisper: WhisperForConditionalGeneration
    heads: list[list[torch.nn.Linear]]  # the base head first where it is one of them
    block: WhisperDecoderLayer | None
    original: WhisperDecoderLayer | None

    def tensors(self) -> dict[str, torch.Tensor]:
        """By the names of aiola's ``save_pretrained``."""
        modules = {"whisper_model.": self.whisper}
        modules |= {
            f"medusa_heads.{head}.{layer}.linear.": linear
            for head, layers in enumerate(self.heads)
            for layer, linear in enumerate(layers)
        }
        modules |= {"medusa_block.": self.block, "whisper_layer.": self.original}
        tensors = {
            prefix + name: value.clone()
            for prefix, module in modules.items()
            if module is not None
            for name, value in module.state_dict().items()
        }
        del tensors["whisper_model.proj_out.weight"]
        return tensors

    def config(self) -> dict:
        """``config.json`` as aiola writes it."""
        num_heads = len(self.heads) - (self.block is None)
        return self.whisper.config.to_dict() | {
            "architectures": ["WhisperMedusaModel"],
            "medusa_choices": [1, 3, 2, *[1] * num_heads][: num_heads + 1],
            "medusa_heads_type": "base_head" if self.block is None else "medusa_block",
            "medusa_hidden_size": SIZES["d_model"],
            "medusa_kl_loss": False,
            "medusa_kl_weight": 0,
            "medusa_loss_on_original": False,
            "medusa_num_heads": num_heads,
            "medusa_num_layers": len(self.heads[0]),
            "output_whisper_original": self.original is not None,
            "whisper_model_name": "openai/whisper-large-v2",
        }

    @torch.no_grad()
    def logits(self, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """(K + 1, 1, L, V), the base head first."""
        output = self.whisper.model(features, decoder_input_ids=tokens)
        hidden, rows = output.last_hidden_state, []
        head_input = hidden
        if self.block is not None:
            rows.append(hidden)
            length = tokens.size(1)
            causal = torch.full((length, length), -torch.inf).triu(1)[None, None]
            memory = output.encoder_last_hidden_state
            head_input = self.block(
                hidden, attention_mask=causal, encoder_hidden_states=memory, use_cache=False
            )
        for layers in self.heads:
            row = head_input
            for linear in layers:
                row = row + torch.nn.functional.silu(linear(row))
            rows.append(row)
        return torch.stack([self.whisper.proj_out(row) for row in rows])


def make_aiola(kind="linear", num_heads=3, num_layers=1, original=False, seed=0, **sizes):
    """A random model; ``sizes`` are fields of WhisperConfig."""
    torch.manual_seed(seed)
    config = WhisperConfig(**{**SIZES, **sizes})
    config._attn_implementation = "eager"
    whisper = WhisperForConditionalGeneration(config).eval()
    linear, size = kind == "linear", config.d_model
    heads = [
        [torch.nn.Linear(size, size) for _ in range(num_layers)]
        for _ in range(num_heads + linear)
    ]  # fmt: skip
    block = None if linear else WhisperDecoderLayer(config).eval()
    layer = WhisperDecoderLayer(config) if original else None
    model = AiolaModel(whisper, heads, block, layer)
    modules = [whisper, block, layer, *(linear for layers in heads for linear in layers)]
    for module in filter(None, modules):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.25)
    return model


def save_aiola(folder: Path, model: AiolaModel, tensors=None, generation=None, **changes) -> Path:
    """Write it; ``changes`` replace fields of config.json, None takes them away."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {k: v for k, v in (model.config() | changes).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config))
    generation = generation or {
        "eos_token_id": EOS, "decoder_start_token_id": START, "posterior_alpha": 0.4,
        "posterior_threshold": 0.1, "no_timestamps_token_id": NO_TIMESTAMPS,
        "suppress_tokens": [3, 5], "begin_suppress_tokens": [7],
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation))
    if tensors is None:
        tensors = model.tensors()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def save_tokens(path: Path, vocab_size: int = VOCAB_SIZE) -> Path:
    """A token list."""
    path.write_text("".join(f"w{number}\n" for number in range(vocab_size)))
    return path
