"""Tokenizer and converter for ESPnet's ``token_type: whisper_en`` and ``whisper_multilingual``.

They replace ESPnet's classes, which need an interface that openai-whisper removed in 2023.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.token_list import read_token_list
from espnet_medusa.networks.whisper.token_types import VOCAB_SIZE_OF_TYPE

# Language names in ESPnet's recipes that are not Whisper's codes.
LANGUAGES = {"noinfo": "en", "jpn": "ja", "kr": "ko", "zh-TW": "zh", "zh-CN": "zh", "zh-HK": "zh"}


@dataclass(frozen=True)
class Prompted:
    """A tokenizer and its prompt, with the attribute names that ESPnet's commands read."""

    tokenizer: Any  # Hugging Face tokenizer
    sot_sequence_including_notimestamps: tuple[int, ...]  # start, language, task, no timestamps
    symbols: range  # ids of special tokens


def build(
    model_type: str,
    language: str | None = None,
    task: str | None = None,
    sot: bool = False,
    speaker_change_symbol: str = "<sc>",
    added_tokens_txt: str | Path | None = None,
) -> Prompted:
    """Build Whisper's tokenizer from ESPnet's options; raise InputError if one is not allowed.

    Args:
        model_type: ``whisper_en`` or ``whisper_multilingual``.
        language: Code, or ESPnet's name for it; None: English.
        task: ``transcribe`` (also None) or ``translate``.
        sot: Whether ``speaker_change_symbol`` is a token, for serialized output training.
        added_tokens_txt: File with one token per line; their ids follow Whisper's.
    """
    if model_type not in VOCAB_SIZE_OF_TYPE:
        raise InputError(f"bpemodel: '{model_type}'; allowed: {', '.join(VOCAB_SIZE_OF_TYPE)}")
    added = [] if added_tokens_txt is None else read_token_list(Path(added_tokens_txt))
    added += [speaker_change_symbol] if sot else []
    code = LANGUAGES.get(language or "en", language or "en")
    return _build(VOCAB_SIZE_OF_TYPE[model_type], code, task, tuple(added))


@cache  # ESPnet builds equal tokenizers up to four times, in half a second each
def _build(vocab_size: int, code: str, task: str | None, added: tuple[str, ...]) -> Prompted:
    # Slow to import.
    from espnet_medusa.networks.whisper.tokens import (
        TRANSCRIBE,
        decode_added_tokens,
        make_tokenizer,
        read_whisper_tokens,
    )

    tokenizer = make_tokenizer(vocab_size)
    tokenizer.add_tokens([*added])
    decode_added_tokens(tokenizer)
    tokens = read_whisper_tokens(tokenizer)
    # For English-only models, ``languages`` is empty; asr.sh passes any --lang to them, too.
    prompt = tokens.prompt(code if tokens.languages else None, task or TRANSCRIBE)
    return Prompted(tokenizer, tuple(prompt), range(tokens.end, vocab_size))


class WhisperTokenizer:
    """Convert text to tokens, as ``OpenAIWhisperTokenizer``; arguments and errors as ``build``."""

    def __init__(self, model_type: str, language: str | None = "en", *arguments, **options):
        self.model, self.language = model_type, language
        self.tokenizer = build(model_type, language, *arguments, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model_type={self.model}, language={self.language})"

    def text2tokens(self, line: str) -> list[str]:
        """Tokenize a text; Whisper's texts begin with a space."""
        text = line if line.startswith(" ") or not line else f" {line}"
        return self.tokenizer.tokenizer.tokenize(text)

    def tokens2text(self, tokens: Iterable[str]) -> str:
        """Return the text of tokens without its leading space."""
        return self.tokenizer.tokenizer.convert_tokens_to_string([*tokens]).removeprefix(" ")


class WhisperTokenIDConverter:
    """Convert tokens to ids, as ``OpenAIWhisperTokenIDConverter``; options as ``build``."""

    def __init__(
        self, model_type: str, language: str | None = None, task: str | None = None, **options
    ):
        self.tokenizer = build(model_type, language, task, **options)

    def get_num_vocabulary_size(self) -> int:
        """Return V, including added tokens."""
        return len(self.tokenizer.tokenizer)

    def ids2tokens(self, integers: Iterable[int]) -> list[str]:
        """Return the tokens of ids; special tokens are omitted."""
        ids = [int(number) for number in integers if int(number) not in self.tokenizer.symbols]
        return self.tokenizer.tokenizer.convert_ids_to_tokens(ids)

    def tokens2ids(self, tokens: Iterable[str]) -> list[int]:
        """Return a label: the prompt's ids except the first one, and the tokens' ids."""
        ids = self.tokenizer.tokenizer.convert_tokens_to_ids([*tokens])
        return [*self.tokenizer.sot_sequence_including_notimestamps[1:], *ids]
