"""Language models with LLaMA's architecture: from scratch by their config, or pretrained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import transformers  # imports its models on first use, which takes seconds
from huggingface_hub.errors import StrictDataclassError

from espnet_medusa.data.errors import InputError, first_line
from espnet_medusa.data.options import check_choice

# RMS norm, rotary embeddings and gated SiLU only: the layers that the runtime supports.
LLAMA_LIKE = ("llama", "mistral", "qwen2")
# Rotary embeddings that change with the sequence length cannot be cached.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def scratch_model(llama_conf: Mapping[str, Any], vocab_size: int) -> transformers.PreTrainedModel:
    """Build a model with random weights; raise InputError for an unsupported or invalid config.

    ``llama_conf``: arguments of transformers' config class, and ``model_type`` (default: llama).
    """
    fields = {"model_type": "llama", **llama_conf, "vocab_size": vocab_size}
    check_choice(fields["model_type"], LLAMA_LIKE, "decoder_conf.llama_conf.model_type")
    if "num_attention_heads" in fields:  # no grouped-query attention by default
        fields.setdefault("num_key_value_heads", fields["num_attention_heads"])
    # The config's default ids would freeze an embedding or exceed the vocabulary.
    fields |= {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    try:
        config = transformers.CONFIG_MAPPING[fields.pop("model_type")](**fields)
        _check_config(config)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except StrictDataclassError as error:
        raise InputError(f"decoder_conf.llama_conf: {first_line(error.__cause__)}") from error
    except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
        raise InputError(f"decoder_conf.llama_conf: {first_line(error)}") from error


def pretrained_model(llama_model: str, vocab_size: int) -> transformers.PreTrainedModel:
    """Load a model in float32; code from the model's folder is not executed.

    Raise InputError if it cannot be loaded, is not supported, or has fewer than ``vocab_size``
    embeddings; further ones are dropped.
    """
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            llama_model, dtype=torch.float32, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"decoder_conf.llama_model: {llama_model!r}: {first_line(error)}; give a hub name or "
            "a folder in Hugging Face format"
        ) from error
    check_choice(model.config.model_type, LLAMA_LIKE, f"{llama_model}: model_type")
    _check_config(model.config)
    num_embeddings = model.get_input_embeddings().weight.size(0)
    if num_embeddings < vocab_size:
        raise InputError(
            f"token_list has {vocab_size} tokens, but {llama_model} has {num_embeddings}: use the "
            "tokens that belong to the model (--token_type hugging_face "
            f"--hugging_face_model_name_or_path {llama_model})"
        )
    if num_embeddings > vocab_size:
        model.resize_token_embeddings(vocab_size)
    return model


def config_fields(config: transformers.PreTrainedConfig) -> dict[str, Any]:
    """Return the ``llama_conf`` that builds this model without its folder."""
    fields = json.loads(config.to_json_string(use_diff=True))
    unneeded = ("architectures", "dtype", "transformers_version", "_name_or_path", "vocab_size")
    fields = {name: value for name, value in fields.items() if name not in unneeded}
    return {"model_type": config.model_type, **fields}


def _check_config(config: transformers.PreTrainedConfig) -> None:
    check_choice(config.hidden_act, ["silu"], "decoder_conf: hidden_act")
    rope = config.rope_parameters["rope_type"]
    check_choice(rope, ROPE_TYPES, "decoder_conf: rope_parameters.rope_type")
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", window is not None) and window is not None:
        raise InputError(f"decoder_conf: sliding_window: {window}; allowed: null")
    attention = config._attn_implementation
    if "/" in str(attention):
        raise InputError(
            f"decoder_conf: attn_implementation: {attention}; allowed: a name without a slash: "
            "kernels from the hub are not executed"
        )
