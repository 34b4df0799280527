"""The tokenizer and token list of a model: from its folder, from an option, or OpenAI's."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.token_list import read_token_list, write_token_list
from espnet_medusa.networks.whisper.pretrained import open_whisper
from espnet_medusa.networks.whisper.token_types import ENGLISH, MULTILINGUAL, VOCAB_SIZE_OF_TYPE
from espnet_medusa.networks.whisper.tokens import (
    END,
    HOW_TO_GIVE,
    START,
    TOKENIZER_CONFIG,
    WhisperTokens,
    load_tokenizer,
    make_tokenizer,
    read_whisper_tokens,
    unused_name,
)
from espnet_medusa.networks.whisper.weight_files import read_json

TOKENIZER_FILES = (
    TOKENIZER_CONFIG, "tokenizer.json", "vocab.json", "merges.txt", "normalizer.json",
    "added_tokens.json", "special_tokens_map.json",
)  # fmt: skip


@dataclass(frozen=True)
class TextOptions:
    """Source of the vocabulary; both None: the model's folder, or OpenAI's files."""

    tokenizer: str | None = None  # folder or hub name
    token_list: Path | None = None  # one token per line, in the order of ids


@dataclass(frozen=True)
class Text:
    tokens: tuple[str, ...]  # V names, by id
    start: int  # id of the symbol before a transcript
    end: int  # id of the symbol after a transcript
    tokenizer: PreTrainedTokenizerBase | None = None  # None: not a Hugging Face tokenizer
    folder: Path | None = None  # `save` copies its files; None: it saves `tokenizer`
    other_ends: tuple[int, ...] = ()  # ids of other tokens that end a transcript

    @property
    def whisper(self) -> WhisperTokens | None:
        """Whisper's special tokens; None for other vocabularies."""
        if self.tokenizer is None:
            return None
        try:
            return read_whisper_tokens(self.tokenizer)
        except InputError:
            return None

    def save(self, folder: Path) -> None:
        """Write a tokenizer folder."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.folder is None:
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
            return
        for name in TOKENIZER_FILES:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)


def find_text(
    vocab_size: int, folder: Path | None, options: TextOptions, ids: Mapping[str, object]
) -> Text:
    """Find the vocabulary of a model; raise InputError if there is none that fits the model.

    Args:
        folder: The model's folder, or None.
        ids: ``decoder_start_token_id`` and ``eos_token_id`` of its configs, or else Whisper's:
            an id, or several of which Whisper's is preferred.
    """
    copied = None
    if options.token_list is not None:
        tokenizer = _word_level(options.token_list, vocab_size, ids)
    elif options.tokenizer is not None:
        tokenizer, copied = load_safely(options.tokenizer), Path(options.tokenizer)
    elif folder is not None and any((folder / name).is_file() for name in TOKENIZER_FILES):
        tokenizer, copied = load_safely(folder), folder
    else:
        tokenizer = make_tokenizer(vocab_size)
    tokens = list_tokens(tokenizer, vocab_size)
    start, *_ = _find_ids("start", ids, tokenizer, vocab_size)
    end, *other_ends = _find_ids("end", ids, tokenizer, vocab_size)
    if copied is not None and not (copied / TOKENIZER_CONFIG).is_file():
        copied = None  # without this config, transformers cannot load the copied files
    return Text(tokens, start, end, tokenizer, copied, tuple(other_ends))


def load_safely(name: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer; raise InputError if there is none, or it requires code of its own."""
    config = Path(name) / TOKENIZER_CONFIG
    if config.is_file() and "auto_map" in read_json(config):
        raise InputError(
            f"{config}: auto_map requires code of the tokenizer, which is never run; {HOW_TO_GIVE}"
        )
    return load_tokenizer(name)


def tokenizer_of_type(token_type: str, bpemodel: str | Path) -> PreTrainedTokenizerBase:
    """Load Whisper's tokenizer, or ``bpemodel`` for ``hugging_face``; errors as ``load_safely``."""
    if token_type in VOCAB_SIZE_OF_TYPE:
        return make_tokenizer(VOCAB_SIZE_OF_TYPE[token_type])
    return load_safely(bpemodel)


def list_tokens(
    tokenizer: PreTrainedTokenizerBase, vocab_size: int | None = None
) -> tuple[str, ...]:
    """Return V names, placeholders for unused ids; raise InputError if there are more names.

    ``vocab_size``: V; None: up to the last name.
    """
    names = {number: name for name, number in tokenizer.get_vocab().items()}
    vocab_size = max(names) + 1 if vocab_size is None else vocab_size
    if max(names) >= vocab_size:
        raise InputError(
            f"tokenizer of {max(names) + 1} tokens, vocab_size: {vocab_size}; {HOW_TO_GIVE}, the "
            "one that belongs to the model"
        )
    return tuple(names.get(number, unused_name(number)) for number in range(vocab_size))


def _find_ids(
    which: str, ids: Mapping[str, object], tokenizer: PreTrainedTokenizerBase, vocab_size: int
) -> list[int]:
    """Return the ids of a symbol, Whisper's first; ids out of the vocabulary are left out."""
    name, usual = {"start": ("decoder_start_token_id", START), "end": ("eos_token_id", END)}[which]
    given = _listed(ids.get(name))
    known = sorted({*given} & {*range(vocab_size)}, key=given.index)
    usual = tokenizer.get_vocab().get(usual)
    if known:
        return sorted(known, key=lambda number: number != usual)
    if given and usual is None:
        raise InputError(f"token id {given[0]}: out of the vocabulary of {vocab_size} tokens")
    return [getattr(read_whisper_tokens(tokenizer), which)]


def _listed(ids: object) -> list[int]:
    return [ids] if type(ids) is int else [*(ids or [])]


def _word_level(path: Path, vocab_size: int, ids: Mapping[str, object]) -> PreTrainedTokenizerFast:
    """Build a tokenizer of whole words from a token list; tokens with a role are special."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = read_token_list(path)
    if len(words) != vocab_size or len(set(words)) != vocab_size:
        raise InputError(
            f"--token_list {path}: {len(words)} lines, {len(set(words))} different; the model has "
            f"{vocab_size} tokens: give one per line, in the order of ids"
        )
    roles = {id for name in ids if name.endswith("_token_id") for id in _listed(ids[name])}
    special = [words[number] for number in sorted(roles & {*range(vocab_size)})]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=special)


# Vocabulary sizes of hub models with OpenAI's tokenizers, which need no download.
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
    """Return the vocabulary of a Whisper: its folder's, or OpenAI's; errors as ``find_text``."""
    if whisper_model in VOCAB_SIZES:
        return find_text(VOCAB_SIZES[whisper_model], None, TextOptions(), {})
    whisper = open_whisper(whisper_model)
    folder = whisper.files[0].parent
    tokenizer_folder = folder if (folder / "config.json").is_file() else None
    return find_text(whisper.config.vocab_size, tokenizer_folder, TextOptions(), {})


def save_whisper_tokens(whisper_model: str, token_type: str, token_list: Path, folder: Path) -> int:
    """Write the token list and the tokenizer's folder of a Whisper; return the number of tokens.

    Raise InputError as ``read_text``, or if the model's tokens are not of this type.
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
