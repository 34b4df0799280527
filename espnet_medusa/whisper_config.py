"""Whisper sizes from ESPnet-style options or from a folder in Hugging Face format."""

from pathlib import Path

from transformers import WhisperConfig, WhisperForConditionalGeneration

from espnet_medusa.errors import InputError


def load_whisper(whisper_model: str) -> WhisperForConditionalGeneration:
    """Load a Whisper by local folder or Hugging Face name.

    Args:
        whisper_model: Folder in Hugging Face format, or a name such as ``openai/whisper-base``.

    Raises:
        InputError: The folder is not there, or is not a Whisper model.
    """
    folder = Path(whisper_model)
    looks_local = whisper_model.startswith((".", "/", "~")) or folder.exists()
    if looks_local and not (folder.expanduser() / "config.json").is_file():
        raise InputError(
            f"whisper_model: '{whisper_model}' holds no config.json; give a folder in Hugging "
            "Face format (save_pretrained) or a name such as openai/whisper-base"
        )
    # Only safetensors: a pickled checkpoint could run code.
    model = WhisperForConditionalGeneration.from_pretrained(
        folder.expanduser() if looks_local else whisper_model, use_safetensors=True
    )
    return model.float()


def encoder_config(
    num_mel_bins: int,
    hidden_size: int,
    num_blocks: int,
    attention_heads: int,
    linear_units: int,
    dropout_rate: float,
    max_source_positions: int,
) -> WhisperConfig:
    """Sizes of an encoder that is trained from scratch."""
    return WhisperConfig(
        num_mel_bins=num_mel_bins,
        d_model=hidden_size,
        encoder_layers=num_blocks,
        encoder_attention_heads=attention_heads,
        encoder_ffn_dim=linear_units,
        max_source_positions=max_source_positions,
        **_dropout(dropout_rate),
        pad_token_id=None,  # an id would freeze that token's embedding
    )


def decoder_config(
    vocab_size: int,
    hidden_size: int,
    num_blocks: int,
    attention_heads: int,
    linear_units: int,
    dropout_rate: float,
    max_target_positions: int,
) -> WhisperConfig:
    """Sizes of a decoder that is trained from scratch."""
    return WhisperConfig(
        vocab_size=vocab_size,
        d_model=hidden_size,
        decoder_layers=num_blocks,
        decoder_attention_heads=attention_heads,
        decoder_ffn_dim=linear_units,
        max_target_positions=max_target_positions,
        **_dropout(dropout_rate),
        pad_token_id=None,  # an id would freeze that token's embedding
    )


def _dropout(rate: float) -> dict:
    return {"dropout": rate, "attention_dropout": rate, "activation_dropout": rate}
