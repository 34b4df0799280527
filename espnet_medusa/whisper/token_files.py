"""Tokenizer folder and token list of a Whisper: stage 5 of the recipe."""

from pathlib import Path

from espnet_medusa.errors import InputError
from espnet_medusa.files.token_list import write_token_list
from espnet_medusa.whisper.pretrained import open_whisper
from espnet_medusa.whisper.text import Text, TextOptions, find_text
from espnet_medusa.whisper.token_types import ENGLISH, MULTILINGUAL

# Vocabularies of OpenAI's models and of those distilled from them: no need to fetch the model.
_ENGLISH_SIZES = ("tiny", "base", "small", "medium")
_SIZES = (*_ENGLISH_SIZES, "large", "large-v2")
VOCAB_SIZES = (
    {f"openai/whisper-{size}.en": 51864 for size in _ENGLISH_SIZES}
    | {f"openai/whisper-{size}": 51865 for size in _SIZES}
    | {f"openai/whisper-{size}": 51866 for size in ("large-v3", "large-v3-turbo")}
    | {f"distil-whisper/distil-{size}.en": 51864 for size in ("small", "medium")}
    | {"distil-whisper/distil-large-v2": 51865, "distil-whisper/distil-large-v3": 51866}
    | {f"Systran/faster-whisper-{size}.en": 51864 for size in _ENGLISH_SIZES}
    | {f"Systran/faster-whisper-{size}": 51865 for size in (*_ENGLISH_SIZES, "large-v2")}
    | {"Systran/faster-whisper-large-v3": 51866}
)


def read_text(whisper_model: str) -> Text:
    """Vocabulary and tokenizer of a Whisper: the folder's own, or else OpenAI's.

    Args:
        whisper_model: As ``open_whisper``.

    Raises:
        InputError: There is no such model, or no tokenizer for its vocabulary.
    """
    if whisper_model in VOCAB_SIZES:
        return find_text(VOCAB_SIZES[whisper_model], None, TextOptions(), {})
    whisper = open_whisper(whisper_model)
    folder = whisper.files[0].parent
    own = folder if (folder / "config.json").is_file() else None
    return find_text(whisper.config.vocab_size, own, TextOptions(), {})


def save_whisper_tokens(whisper_model: str, token_type: str, token_list: Path, folder: Path) -> int:
    """Write a Whisper's token list and the folder of its tokenizer.

    Args:
        whisper_model: As ``read_text``.
        token_type: ``whisper_en`` or ``whisper_multilingual``, which must be the model's.
        token_list: File to write, one token a line; line numbers are ids.
        folder: For ``bpemodel`` of ``token_type: hugging_face``.

    Returns:
        Number of tokens.

    Raises:
        InputError: As ``read_text``, or the model's tokens are not of this type.
    """
    text = read_text(whisper_model)
    if text.whisper is None:
        raise InputError(f"--whisper_model {whisper_model}: its tokenizer lacks Whisper's symbols")
    kind = MULTILINGUAL if text.whisper.languages else ENGLISH
    if token_type != kind:
        raise InputError(f"--token_type {token_type}: {whisper_model} needs {kind}")
    text.save(folder)
    write_token_list(token_list, text.tokens)
    return len(text.tokens)
