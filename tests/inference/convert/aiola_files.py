"""Random models in aiola's file format, and what they compute, on transformers' modules alone."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
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
TIED = "whisper_model.proj_out.weight"


class AiolaModel(torch.nn.Module):
    """A model with the module names of aiola's training code."""

    def __init__(self, config: WhisperConfig, kind: str, num_heads: int, num_layers: int):
        super().__init__()
        config._attn_implementation = "eager"
        linear, size = kind == "base_head", config.d_model
        self.whisper_model = WhisperForConditionalGeneration(config)
        self.medusa_heads = torch.nn.ModuleList(
            torch.nn.ModuleList(
                torch.nn.ModuleDict({"linear": torch.nn.Linear(size, size)})
                for _ in range(num_layers)
            )
            for _ in range(num_heads + linear)  # the base head first where it is one of them
        )
        self.medusa_block = None if linear else WhisperDecoderLayer(config)
        self.whisper_layer = None
        self.eval()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return tensors by their names in aiola's ``save_pretrained``."""
        return {name: value.clone() for name, value in self.state_dict().items() if name != TIED}

    def config(self) -> dict:
        """``config.json`` as aiola writes it."""
        num_heads = len(self.medusa_heads) - (self.medusa_block is None)
        return self.whisper_model.config.to_dict() | {
            "architectures": ["WhisperMedusaModel"],
            "medusa_choices": [1, 3, 2, *[1] * num_heads][: num_heads + 1],
            "medusa_heads_type": "base_head" if self.medusa_block is None else "medusa_block",
            "medusa_hidden_size": SIZES["d_model"], "medusa_kl_loss": False,
            "medusa_kl_weight": 0, "medusa_loss_on_original": False,
            "medusa_num_heads": num_heads, "medusa_num_layers": len(self.medusa_heads[0]),
            "output_whisper_original": self.whisper_layer is not None,
            "whisper_model_name": "openai/whisper-large-v2",
        }  # fmt: skip

    @torch.no_grad()
    def logits(self, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """(K + 1, 1, L, V), the base head first."""
        output = self.whisper_model.model(features, decoder_input_ids=tokens)
        head_input, rows = output.last_hidden_state, []
        if self.medusa_block is not None:
            rows.append(head_input)
            length = tokens.size(1)
            causal = torch.full((length, length), -torch.inf).triu(1)[None, None]
            encoder_out = output.encoder_last_hidden_state
            head_input = self.medusa_block(
                head_input,
                attention_mask=causal,
                encoder_hidden_states=encoder_out,
                use_cache=False,
            )
        for layers in self.medusa_heads:
            row = head_input
            for layer in layers:
                row = row + torch.nn.functional.silu(layer["linear"](row))
            rows.append(row)
        return torch.stack([self.whisper_model.proj_out(row) for row in rows])


def make_aiola(kind="base_head", num_heads=3, num_layers=1, original=False) -> AiolaModel:
    torch.manual_seed(0)
    config = WhisperConfig(**SIZES)
    model = AiolaModel(config, kind, num_heads, num_layers)
    model.whisper_layer = WhisperDecoderLayer(config) if original else None
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    return model


def save_aiola(folder: Path, model: AiolaModel, tensors=None, generation=None, **changes) -> Path:
    """Write a model; ``changes`` replace fields of config.json, None removes them."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {k: v for k, v in (model.config() | changes).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config))
    generation = generation or {
        "eos_token_id": EOS, "decoder_start_token_id": START, "posterior_alpha": 0.4,
        "posterior_threshold": 0.1, "no_timestamps_token_id": NO_TIMESTAMPS,
        "suppress_tokens": [3, 5], "begin_suppress_tokens": [7],
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation))
    tensors = tensors or model.tensors()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def read_aiola(folder: Path) -> AiolaModel:
    config = json.loads((folder / "config.json").read_text())
    names = WhisperConfig().to_dict().keys() & config
    heads = (config[f"medusa_{name}"] for name in ("heads_type", "num_heads", "num_layers"))
    model = AiolaModel(WhisperConfig(**{name: config[name] for name in names}), *heads)
    loaded = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert loaded.missing_keys == [TIED] and not loaded.unexpected_keys
    return model


def save_tokens(path: Path, vocab_size: int = VOCAB_SIZE) -> Path:
    path.write_text("".join(f"w{number}\n" for number in range(vocab_size)))
    return path
