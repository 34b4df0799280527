"""Whisper's sizes as ESPnet options, transformers' config and OpenAI's ``dims``."""

import reprlib
from collections.abc import Mapping
from typing import Any

from transformers import WhisperConfig

from espnet_medusa.data.errors import InputError

# ESPnet options to transformers' names.
ENCODER_SIZES = {
    "num_mel_bins": "num_mel_bins",
    "output_size": "d_model",
    "num_blocks": "encoder_layers",
    "attention_heads": "encoder_attention_heads",
    "linear_units": "encoder_ffn_dim",
    "max_source_positions": "max_source_positions",
}
DECODER_SIZES = {
    "num_blocks": "decoder_layers",
    "attention_heads": "decoder_attention_heads",
    "linear_units": "decoder_ffn_dim",
    "max_target_positions": "max_target_positions",
}

# All of transformers' names, and the largest allowed sizes of a network.
SIZES = tuple(dict.fromkeys(["vocab_size", *ENCODER_SIZES.values(), *DECODER_SIZES.values()]))
MAX_SIZE, MAX_LAYERS = 10_000_000, 1000


def scratch_config(dropout_rate: float, **sizes: int) -> WhisperConfig:
    """Build the config of a network from its sizes by ``WhisperConfig``'s names."""
    rates = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), dropout_rate)
    # A padding id would freeze that token's embedding. The start id 0 is valid in any vocabulary.
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    return WhisperConfig(**sizes, **rates, **ids, decoder_start_token_id=0)


def config_of_options(
    options: object, names: Mapping[str, str], dropout_rate: float, **sizes: int
) -> WhisperConfig:
    """Build the config of encoder or decoder; ``names`` maps options to sizes."""
    own_sizes = {name: getattr(options, option) for option, name in names.items()}
    return scratch_config(dropout_rate, **own_sizes, **sizes)


def network_config(config: WhisperConfig, dropout_rate: float) -> WhisperConfig:
    """Return the config of a network with the sizes of ``config`` and another dropout rate."""
    names = [*SIZES, "scale_embedding"]
    return scratch_config(dropout_rate, **{name: getattr(config, name) for name in names})


def options_of_config(config: WhisperConfig, names: Mapping[str, str]) -> dict[str, int]:
    """Return the ``encoder_conf`` or ``decoder_conf`` that builds a network of these sizes."""
    return {option: getattr(config, name) for option, name in names.items()}


def check_sizes(fields: Mapping[str, Any], where: str) -> None:
    """Raise InputError for sizes that are not possible; missing ones are not checked."""
    for name in SIZES:
        limit = MAX_LAYERS if name.endswith("_layers") else MAX_SIZE
        if name in fields and not (type(fields[name]) is int and 1 <= fields[name] <= limit):
            shown = reprlib.repr(fields[name])
            raise InputError(f"{where}: {name}: {shown}; allowed: 1 to {limit}; fetch it again")
    width = fields.get("d_model", 4)
    if width < 4 or width % 2:  # position embeddings: sines and cosines of two or more frequencies
        raise InputError(f"{where}: d_model: {width}; allowed: an even number, 4 or more")
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        if {name, "d_model"} <= {*fields} and width % fields[name]:
            raise InputError(
                f"{where}: {name}: {fields[name]}; allowed: divisors of d_model, {width}"
            )


def config_of_hugging_face(fields: Mapping[str, Any], where: str) -> WhisperConfig:
    """Build the config from ``config.json``; raise InputError if it is not Whisper's."""
    check_sizes(fields, where)
    try:
        # Ids are read by ``special_ids``; transformers refuses some that it writes itself.
        kept = {name: fields[name] for name in fields if not name.endswith(("_id", "_ids"))}
        return WhisperConfig.from_dict(kept)
    except Exception as error:  # transformers raises many kinds of errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{where}: {reason}; correct it, or fetch it again") from error


def config_of_openai(dims: Mapping[str, int], where: str) -> WhisperConfig:
    """Build the config from ``dims``; raise KeyError for a missing, InputError for a bad size."""
    sizes = dict(
        vocab_size=dims["n_vocab"],
        num_mel_bins=dims["n_mels"],
        d_model=dims["n_audio_state"],
        encoder_layers=dims["n_audio_layer"],
        encoder_attention_heads=dims["n_audio_head"],
        encoder_ffn_dim=4 * dims["n_audio_state"],
        max_source_positions=dims["n_audio_ctx"],
        decoder_layers=dims["n_text_layer"],
        decoder_attention_heads=dims["n_text_head"],
        decoder_ffn_dim=4 * dims["n_text_state"],
        max_target_positions=dims["n_text_ctx"],
    )
    check_sizes(sizes, where)
    return WhisperConfig(**sizes)


def check_alignment(pairs: object, whisper: WhisperConfig, where: str) -> None:
    """Raise InputError unless these are pairs of a decoder layer and a head."""
    layers, heads = whisper.decoder_layers, whisper.decoder_attention_heads
    if not (
        isinstance(pairs, list)
        and all(are_below(pair, max(layers, heads)) and len(pair) == 2 for pair in pairs)
        and all(layer < layers and head < heads for layer, head in pairs)
    ):
        raise InputError(
            f"{where}: {reprlib.repr(pairs)}; allowed: pairs of a layer below "
            f"{layers} and a head below {heads}; correct it"
        )


def check_ids(ids: object, vocab_size: int, where: str) -> list[int]:
    """Return a list of token ids; raise InputError for anything else."""
    if not are_below(ids, vocab_size):
        raise InputError(
            f"{where}: {reprlib.repr(ids)}; allowed: a list of token ids, 0 to {vocab_size - 1}; "
            "correct it"
        )
    return ids


def are_below(numbers: object, limit: int) -> bool:
    return isinstance(numbers, list) and all(
        type(number) is int and 0 <= number < limit for number in numbers
    )
