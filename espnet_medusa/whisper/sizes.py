"""Whisper's sizes: ESPnet-style options, transformers' config, OpenAI's ``dims``."""

from collections.abc import Iterable, Mapping

from transformers import WhisperConfig

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


def config_of_openai(dims: Mapping[str, int]) -> WhisperConfig:
    """Config from ``dims`` of an OpenAI ``.pt`` file.

    Raises:
        KeyError: A size is missing.
    """
    return WhisperConfig(
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
