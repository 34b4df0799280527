"""Vocabularies of Hugging Face's tokenizers, sentencepiece models and ESPnet's token lists."""

import re
import reprlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.token_list import read_token_list
from espnet_medusa.data.options import read_config
from espnet_medusa.data.vocabulary.byte_pairs import byte_alphabet
from espnet_medusa.data.vocabulary.vocabulary import Vocabulary
from espnet_medusa.networks.whisper.token_types import VOCAB_SIZE_OF_TYPE, WHISPER_TYPES

# Vocabularies of openai-whisper and their sizes.
BUNDLED = {**VOCAB_SIZE_OF_TYPE, "whisper_large_v3": 51866}
TOKEN_TYPES = ("bpe", "char", "word", "hugging_face", *WHISPER_TYPES)
STARTS = ("<|startoftranscript|>", "<sos/eos>", "<s>", "<|begin_of_text|>")
ENDS = ("<|endoftext|>", "<sos/eos>", "</s>", "<|end_of_text|>")
BOUNDARY, SPACE = "▁", "<space>"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPECIAL = re.compile(r"<[^<>\s]+>")
Speller = Callable[[str], list[int | None]]


def _find(names: Sequence[str | None], options: Sequence[str], default: int | None) -> int | None:
    return next((names.index(name) for name in options if name in names), default)


def hugging_face_vocabulary(tokenizer: Any) -> Vocabulary:
    """Convert a ``PreTrainedTokenizerFast``: byte-level BPE, or BPE converted from sentencepiece.

    Raise InputError for another kind of tokenizer.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    byte_level = "ByteLevel" in str(getattr(backend, "decoder", None))
    kind = type(backend.model).__name__ if backend is not None else type(tokenizer).__name__
    if kind != "BPE" or not (byte_level or backend.token_to_id(BOUNDARY) is not None):
        raise InputError(
            f"tokenizer of kind {kind}: allowed are byte-level BPE and BPE with word boundaries "
            f"'{BOUNDARY}'; for sentencepiece give the .model file"
        )
    alphabet = byte_alphabet()
    vocabulary = tokenizer.get_vocab()
    contents: list[bytes | None] = [None] * (max(vocabulary.values()) + 1)
    names: list[str | None] = [None] * len(contents)
    for token, number in vocabulary.items():
        if not byte_level:
            contents[number] = piece_bytes(token)
        elif all(sign in alphabet for sign in token):
            contents[number] = bytes(alphabet[sign] for sign in token)
        else:
            contents[number] = token.encode()
    for number, added in tokenizer.added_tokens_decoder.items():
        special = added.special or _SPECIAL.fullmatch(added.content)
        names[number] = added.content if special else None
        contents[number] = None if special else added.content.encode()

    unknown = backend.model.unk_token

    def tokenize(text: str) -> list[int | None]:
        tokens = backend.model.tokenize(text)
        return [None if token.value == unknown else token.id for token in tokens]

    def spell(text: str) -> list[int | None]:
        if backend.normalizer is not None and byte_level:
            text = backend.normalizer.normalize_str(text)
        if not byte_level:
            return tokenize(text.replace(" ", BOUNDARY))
        # The whole tokenizer would also convert names of special tokens.
        pieces = backend.pre_tokenizer.pre_tokenize_str(text)
        return [number for piece, _ in pieces for number in tokenize(piece)]

    def spell_bytes(data: bytes) -> list[int | None]:
        signs = {byte: sign for sign, byte in alphabet.items()}
        return tokenize("".join(signs[byte] for byte in data))

    return Vocabulary(
        tuple(contents),
        tuple(names),
        spell,
        spell_bytes if byte_level else None,
        leading_space=None if byte_level else True,
        start=_find(names, STARTS, tokenizer.bos_token_id),
        end=_find(names, ENDS, tokenizer.eos_token_id),
    )


def piece_bytes(piece: str) -> bytes:
    """Return the bytes of a sentencepiece piece."""
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(BOUNDARY, " ").encode()


def _open_sentencepiece(model: str | Path) -> Any:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load(str(model))
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"sentencepiece model '{model}': cannot be read; give the path of a .model file"
        ) from error
    return processor


def _sentencepiece_speller(processor: Any) -> Speller:
    """Return a tokenizer for a part of a text: it keeps spaces and adds none at the start."""
    # A copy, because the normalizer is changed.
    inside = type(processor)()
    inside.load_from_serialized_proto(processor.serialized_model_proto())
    inside.override_normalizer_spec(add_dummy_prefix=False, remove_extra_whitespaces=False)
    unknown = inside.unk_id()
    return lambda text: [None if n == unknown else n for n in inside.encode(text)]


def sentencepiece_vocabulary(model: str | Path) -> Vocabulary:
    """Read a sentencepiece model: unigram or BPE, with or without byte fallback."""
    processor = _open_sentencepiece(model)
    contents: list[bytes | None] = []
    names: list[str | None] = []
    for number in range(processor.get_piece_size()):
        piece = processor.id_to_piece(number)
        special = processor.is_control(number) or processor.is_unknown(number)
        names.append(piece if special else None)
        is_text = not (special or processor.is_unused(number))
        contents.append(piece_bytes(piece) if is_text else None)
    return Vocabulary(
        tuple(contents),
        tuple(names),
        _sentencepiece_speller(processor),
        leading_space=processor.normalize("a") != "a",
        start=None if processor.bos_id() < 0 else processor.bos_id(),
        end=None if processor.eos_id() < 0 else processor.eos_id(),
    )


def token_list_vocabulary(
    tokens: Sequence[str], token_type: str, bpemodel: str | Path | None = None
) -> Vocabulary:
    """Build the vocabulary of an ESPnet model from three values of its config.

    Raise InputError if the token type is not in ``TOKEN_TYPES``, or ``bpemodel`` is missing.
    """
    if token_type not in TOKEN_TYPES:
        raise InputError(f"token_type: {token_type}; allowed: {', '.join(TOKEN_TYPES)}")
    if token_type in WHISPER_TYPES:
        return open_vocabulary(token_type)
    if token_type in ("bpe", "hugging_face") and bpemodel is None:
        raise InputError(f"token_type: {token_type} without bpemodel; give that of the training")
    if token_type == "hugging_face":
        return open_vocabulary(bpemodel)
    names = tuple(token if _is_special(token) else None for token in tokens)
    write = {
        "bpe": piece_bytes,
        "char": lambda token: b" " if token == SPACE else token.encode(),
        "word": lambda token: f" {token}".encode(),
    }[token_type]
    contents = tuple(None if _is_special(token) else write(token) for token in tokens)
    if token_type == "bpe":
        spell = _bpe_speller(tokens, bpemodel)
    else:
        spell = _list_speller(contents, token_type)
    return Vocabulary(
        contents,
        names,
        spell,
        leading_space=token_type != "char",
        start=_find(names, STARTS, None),
        end=_find(names, ENDS, None),
    )


def _is_special(token: str) -> bool:
    return bool(_SPECIAL.fullmatch(token)) and token != SPACE and not _BYTE.fullmatch(token)


def _list_speller(contents: Sequence[bytes | None], token_type: str) -> Speller:
    ids = {text: number for number, text in enumerate(contents) if text is not None}
    if token_type == "char":
        return lambda text: [ids.get(character.encode()) for character in text]

    def spell_words(text: str) -> list[int | None]:
        # Text before the first space continues a word, but every token is a whole word.
        first, *words = text.split(" ")
        numbers = [ids.get(f" {word}".encode()) for word in words if word]
        return [None, *numbers] if first else numbers

    return spell_words


def _bpe_speller(tokens: Sequence[str], bpemodel: str | Path) -> Speller:
    processor = _open_sentencepiece(bpemodel)
    spell_pieces = _sentencepiece_speller(processor)
    # ESPnet's ids differ from those of the sentencepiece model.
    ids = {token: number for number, token in enumerate(tokens)}

    def spell(text: str) -> list[int | None]:
        pieces = spell_pieces(text)
        return [None if n is None else ids.get(processor.id_to_piece(n)) for n in pieces]

    return spell


def open_vocabulary(source: str | Path) -> Vocabulary:
    """Open a vocabulary by name or path; raise InputError if it cannot be read.

    Args:
        source: A name of ``BUNDLED``, a sentencepiece ``.model`` file, a token list (bpe:
            next to its ``bpe.model``), an ESPnet config or its folder, or the folder or hub name
            of a Hugging Face tokenizer.
    """
    from espnet_medusa.networks.whisper.tokens import (  # slow to import
        load_tokenizer,
        make_tokenizer,
    )

    path = Path(source)
    if str(source) in BUNDLED:
        return hugging_face_vocabulary(make_tokenizer(BUNDLED[str(source)]))
    if path.suffix == ".model":
        return sentencepiece_vocabulary(path)
    config = path / "config.yaml" if path.is_dir() else path
    if config.suffix in (".yaml", ".yml") and config.is_file():
        return _config_vocabulary(config)
    if path.is_file():
        return _token_list_file(path)
    return hugging_face_vocabulary(load_tokenizer(path if path.is_dir() else source))


def _config_vocabulary(path: Path) -> Vocabulary:
    remedy = "give the config of an ESPnet model"
    config = read_config(path, remedy)
    if not {"token_list", "token_type"} <= config.keys():
        raise InputError(f"{path}: needs token_list and token_type; {remedy}")
    tokens, bpemodel = config["token_list"], config.get("bpemodel")
    if isinstance(tokens, str):
        tokens = read_token_list(Path(tokens))
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{path}: token_list: {reprlib.repr(tokens)}; allowed: tokens, or a file")
    if not isinstance(bpemodel, str | NoneType):
        raise InputError(f"{path}: bpemodel: {reprlib.repr(bpemodel)}; allowed: a path")
    return token_list_vocabulary(tokens, config["token_type"], bpemodel)


def _token_list_file(path: Path) -> Vocabulary:
    """Read a token list and infer its type from its tokens."""
    tokens = read_token_list(path)
    ordinary = [token for token in tokens if not _SPECIAL.fullmatch(token)]
    if any(BOUNDARY in token for token in ordinary):
        model = path.with_name("bpe.model")
        if not model.is_file():
            raise InputError(f"{path}: a list of sentencepiece tokens needs {model}; add this file")
        return token_list_vocabulary(tokens, "bpe", model)
    if any(token.startswith("Ġ") for token in ordinary):
        raise InputError(f"{path}: tokens of byte-level BPE; give the tokenizer's folder")
    chars = all(len(token) == 1 for token in ordinary)
    return token_list_vocabulary(tokens, "char" if chars else "word")
