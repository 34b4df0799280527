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


def scratch_config(dropout_rate: float, **sizes: int) -> WhisperConfig:
    """Config of a network that is trained from scratch.

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
    )
