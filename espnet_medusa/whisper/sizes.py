"""Whisper's sizes: ESPnet-style options, transformers' config, OpenAI's ``dims``."""

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import WhisperConfig

from espnet_medusa.errors import InputError

# ESPnet-style options, and transformers' names of the same sizes.
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

# All of transformers' names, and the largest that are taken: the network is built by them.
SIZES = tuple(dict.fromkeys(["vocab_size", *ENCODER_SIZES.values(), *DECODER_SIZES.values()]))
MAX_SIZE, MAX_LAYERS = 10_000_000, 1000


def scratch_config(dropout_rate: float, **sizes: int) -> WhisperConfig:
    """Config of a network from its sizes.

    Args:
        dropout_rate: For hidden states, attention and activations.
        sizes: ``WhisperConfig``'s own names.
    """
    return WhisperConfig(
        **sizes,
        dropout=dropout_rate,
        attention_dropout=dropout_rate,
        activation_dropout=dropout_rate,
        pad_token_id=None,  # an id would freeze that token's embedding
        bos_token_id=None,
        eos_token_id=None,
        decoder_start_token_id=0,  # not used; any vocabulary has it
    )


def config_of_options(
    options: object, names: Mapping[str, str], dropout_rate: float, **sizes: int
) -> WhisperConfig:
    """Config of a half from its options.

    Args:
        options: Has the attributes that ``names`` lists.
        names: ``ENCODER_SIZES`` or ``DECODER_SIZES``.
        dropout_rate: For hidden states, attention and activations.
        sizes: What the options do not say, by ``WhisperConfig``'s own names.
    """
    said = {name: getattr(options, option) for option, name in names.items()}
    return scratch_config(dropout_rate, **said, **sizes)


def encoder_config(config: WhisperConfig, dropout_rate: float) -> WhisperConfig:
    """Of the encoder alone, with the dropout of this training."""
    return _config_of_half(config, dropout_rate, ENCODER_SIZES.values())


def decoder_config(config: WhisperConfig, dropout_rate: float) -> WhisperConfig:
    """Of the decoder alone, with the dropout of this training."""
    names = ["vocab_size", "d_model", "scale_embedding", *DECODER_SIZES.values()]
    return _config_of_half(config, dropout_rate, names)


def encoder_sizes(config: WhisperConfig) -> dict[str, int]:
    """``encoder_conf`` of ``encoder: hf_whisper`` that makes this encoder without its folder."""
    return {option: getattr(config, name) for option, name in ENCODER_SIZES.items()}


def decoder_sizes(config: WhisperConfig) -> dict[str, int]:
    """``decoder_conf`` of ``decoder: whisper_medusa``, likewise."""
    return {option: getattr(config, name) for option, name in DECODER_SIZES.items()}


def _config_of_half(
    config: WhisperConfig, dropout_rate: float, names: Iterable[str]
) -> WhisperConfig:
    return scratch_config(dropout_rate, **{name: getattr(config, name) for name in names})


def check_sizes(said: Mapping[str, Any], where: str) -> None:
    """Refuse sizes that no Whisper has.

    Args:
        said: Sizes by transformers' names, and anything else; some may be missing.
        where: They stand, for messages.

    Raises:
        InputError: Names the size.
    """
    for name in SIZES:
        most = MAX_LAYERS if name.endswith("_layers") else MAX_SIZE
        if name in said and not (type(said[name]) is int and 1 <= said[name] <= most):
            raise InputError(
                f"{where}: {name}: {reprlib.repr(said[name])}; allowed: 1 to {most}; fetch it again"
            )
    width = said.get("d_model", 4)
    if width < 4 or width % 2:  # half of it sines, half cosines, of two frequencies or more
        raise InputError(f"{where}: d_model: {width}; allowed: an even number, 4 or more")
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        if {name, "d_model"} <= {*said} and said["d_model"] % said[name]:
            raise InputError(
                f"{where}: {name}: {said[name]}; allowed: what divides d_model, {said['d_model']}"
            )


def config_of_hugging_face(fields: Mapping[str, Any], where: str) -> WhisperConfig:
    """Config from the fields of a ``config.json``.

    Raises:
        InputError: They are not those of a Whisper.
    """
    check_sizes(fields, where)
    try:
        return WhisperConfig.from_dict({**fields})
    except Exception as error:  # transformers checks fields in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{where}: {reason}; mend it, or fetch it again") from error


def config_of_openai(dims: Mapping[str, int], where: str) -> WhisperConfig:
    """Config from ``dims`` of an OpenAI ``.pt`` file.

    Raises:
        KeyError: A size is missing.
        InputError: A size is not one of a Whisper.
    """
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
