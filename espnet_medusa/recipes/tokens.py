"""Token lists: stage 5 of the recipe."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from espnet2.text.char_tokenizer import CharTokenizer
from espnet2.text.word_tokenizer import WordTokenizer

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.files.token_list import write_token_list
from espnet_medusa.data.kaldi.table import join_words, read_table, write_table
from espnet_medusa.data.options import option

TOKEN_TYPES = ("bpe", "char", "word", "hugging_face")


@dataclass(frozen=True)
class TokenOptions:
    token_type: str  # one of TOKEN_TYPES
    nbpe: int = option(30, "number of tokens for bpe")
    bpe_mode: str = option("unigram", "kind of sentencepiece model: unigram, bpe, char, word")
    character_coverage: float = option(1.0, "share of characters that sentencepiece must cover")
    input_sentence_size: int = option(100_000_000, "maximum sentences that sentencepiece reads")
    cleaner: str = option("none", "ESPnet text cleaner, or none")
    hugging_face_model: str = option("", "name or folder of the tokenizer for hugging_face")
    blank: str = option("<blank>", "first token of the list")
    oov: str = option("<unk>", "second token of the list")
    sos_eos: str = option("<sos/eos>", "last token of the list")
    non_linguistic_symbols: tuple[str, ...] = ()  # symbols that are never split


def make_cleaner(name: str) -> Callable[[str], str]:
    """Return ESPnet's cleaner, the identity for none; raise ValueError if it is unavailable."""
    if name in ("none", ""):
        return str
    from espnet2.text.cleaner import TextCleaner  # slow to import

    cleaner = TextCleaner([name])
    try:
        cleaner("a")
    except Exception as error:
        reason = "openai-whisper is not installed" if "whisper" in name else error
        raise ValueError(f"--cleaner {name} is not available: {reason}") from error
    return cleaner


def read_sentences(texts: Iterable[Path], cleaner: str) -> list[str]:
    """Return cleaned sentences of Kaldi text files; raise ValueError if there are none."""
    clean, texts = make_cleaner(cleaner), list(texts)
    tables = [read_table(path, require_value=False) for path in texts]
    sentences = [clean(join_words(text)) for table in tables for text in table.values()]
    sentences = [sentence for sentence in sentences if sentence.strip()]
    if not sentences:
        raise ValueError(f"{', '.join(map(str, texts))}: no text to make tokens from")
    return sentences


def read_symbols(value: str) -> tuple[str, ...]:
    """Return the symbols in a file, or of a list that is separated by commas, as in ESPnet.

    A single name that is neither in brackets nor a file is an InputError, as it is mistyped.
    """
    if value in ("none", ""):
        return ()
    if Path(value).is_file():
        return tuple(Path(value).read_text(encoding="utf-8").split())
    symbols = tuple(filter(None, map(str.strip, value.split(","))))
    if len(symbols) == 1 and re.fullmatch(r"[<\[({].*[>\])}]", symbols[0]) is None:
        allowed = "a file, or symbols such as '<noise>,<laugh>'"
        raise InputError(f"symbols that are never split: {value}: no such file; give {allowed}")
    return symbols


def join_texts(texts: Iterable[Path], output: Path) -> None:
    """Join Kaldi text files; a repeated id gets a number, and lines without words are left out."""
    joined: dict[str, str] = {}
    for path in texts:
        for key, text in read_table(path, require_value=False).items():
            unused = (f"{key}-{number}" for number in count(2))
            name = key if key not in joined else next(one for one in unused if one not in joined)
            if text:
                joined[name] = text
    write_table(output, joined)


def train_bpe(sentences: list[str], options: TokenOptions, folder: Path) -> list[str]:
    """Train `folder/bpe.model` and return its pieces; raise ValueError if sentencepiece fails."""
    import sentencepiece

    write_atomically(folder / "train.txt", "\n".join(sentences) + "\n")
    try:
        sentencepiece.SentencePieceTrainer.train(
            # Not `input`, which is a list: it would split the path at commas.
            sentence_iterator=iter(sentences),
            model_prefix=str(folder / "bpe"),
            vocab_size=options.nbpe,
            model_type=options.bpe_mode,
            character_coverage=options.character_coverage,
            input_sentence_size=options.input_sentence_size,
            user_defined_symbols=list(options.non_linguistic_symbols),
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).split("] ")[-1]
        raise ValueError(f"--nbpe {options.nbpe} on {folder / 'train.txt'}: {reason}") from error
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "bpe.model"))
    pieces = range(model.get_piece_size())
    pieces = [piece for piece in pieces if not (model.is_control(piece) or model.is_unknown(piece))]
    return model.id_to_piece(pieces)


def count_tokens(sentences: list[str], options: TokenOptions) -> list[str]:
    """Return the characters or words of the sentences, the most frequent first."""
    tokenizer = WordTokenizer()
    if options.token_type == "char":
        tokenizer = CharTokenizer(non_linguistic_symbols=options.non_linguistic_symbols)
    counts = Counter(token for sentence in sentences for token in tokenizer.text2tokens(sentence))
    return sorted(counts, key=lambda token: (-counts[token], token))


def hugging_face_tokens(options: TokenOptions) -> list[str]:
    """Return all tokens of a Hugging Face tokenizer by id; raise ValueError without one."""
    from espnet_medusa.networks.whisper.text import list_tokens, load_safely

    name = options.hugging_face_model
    if not name:
        raise ValueError("--token_type hugging_face requires --hugging_face_model_name_or_path")
    # Line numbers are ids, so an id without a token needs a line, too.
    return [*list_tokens(load_safely(name))]


def make_token_list(texts: Iterable[Path], token_list: Path, options: TokenOptions) -> int:
    """Write a token list, and for bpe its sentencepiece model next to it; return the list's length.

    Raises ValueError for an unknown token type, or if there is not enough text.
    """
    if options.token_type not in TOKEN_TYPES:
        raise ValueError(
            f"--token_type {options.token_type}: allowed are {', '.join(TOKEN_TYPES)}; "
            "for a model with its own tokens give --token_list FILE"
        )
    if options.token_type == "hugging_face":
        tokens = hugging_face_tokens(options)
    else:
        sentences = read_sentences(texts, options.cleaner)
        if options.token_type == "bpe":
            tokens = train_bpe(sentences, options, token_list.parent)
        else:
            tokens = count_tokens(sentences, options)
        special = (options.blank, options.oov, options.sos_eos)
        tokens = [token for token in tokens if token not in special]
        tokens = [options.blank, options.oov, *tokens, options.sos_eos]
    write_token_list(token_list, tokens)
    return len(tokens)
