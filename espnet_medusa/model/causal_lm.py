"""LLaMA-shaped language models: from scratch by their config, or pretrained with their weights."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_choice

# Layers of RMS norm, rotary attention and gated SiLU, nothing else: what the runtime lays out.
LLAMA_SHAPED = ("llama", "mistral", "qwen2")
# Rotations that change with the length of what is there cannot be cached.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def scratch_model(llama_conf: Mapping[str, Any], vocab_size: int) -> PreTrainedModel:
    """A model with random weights.

    Args:
        llama_conf: Keywords of transformers' config class; ``model_type``: llama if not said.
        vocab_size: V.

    Raises:
        InputError: A model of another shape, or sizes that make none.
    """
    fields = {"model_type": "llama", **llama_conf, "vocab_size": vocab_size}
    check_choice(fields["model_type"], LLAMA_SHAPED, "decoder_conf.llama_conf.model_type")
    if "num_attention_heads" in fields:  # no groups of heads, whatever the kind's default
        fields.setdefault("num_key_value_heads", fields["num_attention_heads"])
    # Ids of the config's own would freeze an embedding, or lie outside of the vocabulary.
    fields |= {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    try:
        config = CONFIG_MAPPING[fields.pop("model_type")](**fields)
        _check_config(config)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except StrictDataclassError as error:
        raise InputError(f"decoder_conf.llama_conf: {_first_line(error.__cause__)}") from error
    except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
        raise InputError(f"decoder_conf.llama_conf: {_first_line(error)}") from error


def pretrained_model(llama_model: str, vocab_size: int) -> PreTrainedModel:
    """A model with its weights, in float32; no code of strangers runs.

    Args:
        llama_model: Hub name, or folder in Hugging Face format.
        vocab_size: V of the token list; embeddings that no token has are left out.

    Raises:
        InputError: There is no such model, its shape is another, or it lacks tokens of the list.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(
            llama_model, dtype=torch.float32, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"decoder_conf.llama_model: {llama_model!r}: {_first_line(error)}; give a hub name or "
            "a folder in Hugging Face format"
        ) from error
    check_choice(model.config.model_type, LLAMA_SHAPED, f"{llama_model}: model_type")
    _check_config(model.config)
    own = model.get_input_embeddings().weight.size(0)
    if own < vocab_size:
        raise InputError(
            f"token_list has {vocab_size} tokens, {llama_model} {own}: use the tokens that belong "
            f"to the model (--token_type hugging_face --hugging_face_model_name_or_path "
            f"{llama_model})"
        )
    if own > vocab_size:
        model.resize_token_embeddings(vocab_size)
    return model


def config_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """``llama_conf`` that makes this model without its folder."""
    fields = json.loads(config.to_json_string(use_diff=True))
    unneeded = ("architectures", "dtype", "transformers_version", "_name_or_path", "vocab_size")
    return {
        "model_type": config.model_type,
        **{name: value for name, value in fields.items() if name not in unneeded},
    }


def _check_config(config: PreTrainedConfig) -> None:
    """Refuse what layers do beyond their shape.

    Raises:
        InputError: Names the field, its value and what is allowed.
    """
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
            "kernels of a hub are not run"
        )


def _first_line(error: BaseException | None) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
