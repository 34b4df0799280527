"""Whisper's sizes: ESPnet-style options, transformers' config, OpenAI's ``dims``."""

from collections.abc import Mapping

from transformers import WhisperConfig


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
    )


def encoder_config(config: WhisperConfig, dropout_rate: float) -> WhisperConfig:
    """Of the encoder alone, with the dropout of this training."""
    return scratch_config(
        dropout_rate,
        num_mel_bins=config.num_mel_bins,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        encoder_attention_heads=config.encoder_attention_heads,
        encoder_ffn_dim=config.encoder_ffn_dim,
        max_source_positions=config.max_source_positions,
    )


def decoder_config(config: WhisperConfig, dropout_rate: float) -> WhisperConfig:
    """Of the decoder alone, with the dropout of this training."""
    return scratch_config(
        dropout_rate,
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        decoder_layers=config.decoder_layers,
        decoder_attention_heads=config.decoder_attention_heads,
        decoder_ffn_dim=config.decoder_ffn_dim,
        max_target_positions=config.max_target_positions,
        scale_embedding=config.scale_embedding,
    )


def encoder_sizes(config: WhisperConfig) -> dict[str, int]:
    """``encoder_conf`` of ``encoder: hf_whisper`` that makes this encoder without its folder."""
    return {
        "num_mel_bins": config.num_mel_bins,
        "output_size": config.d_model,
        "num_blocks": config.encoder_layers,
        "attention_heads": config.encoder_attention_heads,
        "linear_units": config.encoder_ffn_dim,
        "max_source_positions": config.max_source_positions,
    }


def decoder_sizes(config: WhisperConfig) -> dict[str, int]:
    """``decoder_conf`` of ``decoder: whisper_medusa``, likewise."""
    return {
        "num_blocks": config.decoder_layers,
        "attention_heads": config.decoder_attention_heads,
        "linear_units": config.decoder_ffn_dim,
        "max_target_positions": config.max_target_positions,
    }


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
