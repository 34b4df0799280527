"""ESPnet's names for Whisper's two vocabularies; this module imports nothing."""

WHISPER_PREPROCESSOR = "whisper"  # the plugin's preprocessor, as ``preprocessor:`` names it
ENGLISH, MULTILINGUAL = "whisper_en", "whisper_multilingual"
WHISPER_TYPES = (ENGLISH, MULTILINGUAL)
VOCAB_SIZE_OF_TYPE = {ENGLISH: 51864, MULTILINGUAL: 51865}  # large-v3 has one more


def asr_sh_options(vocab_size: int, model: str) -> str:
    """Return the options of ``asr.sh`` for the token list of a Whisper model (name or folder)."""
    for name, size in VOCAB_SIZE_OF_TYPE.items():
        if size == vocab_size:
            return f"--token_type {name}"
    return f"--token_type hugging_face --hugging_face_model_name_or_path {model}"
