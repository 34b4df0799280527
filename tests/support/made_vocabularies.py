"""Vocabularies of every kind, trained in seconds on sentences of made-up words."""

import random
import tempfile
from functools import cache
from pathlib import Path

import sentencepiece

from espnet_medusa.data.vocabulary.mapping import map_vocabularies
from espnet_medusa.networks.tokenizers import BUNDLED, open_vocabulary
from espnet_medusa.recipes.tokens import TokenOptions, make_token_list

SYLLABLES = ["ba", "ko", "lü", "mi", "né", "ra", "sto", "ß", "ty", "ve", "xi", "zum"]
MODELS = {
    "small": {"vocab_size": 80, "model_type": "bpe"},
    "large": {"vocab_size": 300, "model_type": "bpe"},
    "unigram": {"vocab_size": 150, "model_type": "unigram"},
    "fallback": {
        "vocab_size": 400, "model_type": "bpe", "byte_fallback": True,
        "normalization_rule_name": "identity",
    },
}  # fmt: skip
LISTS = ("char", "word", "bpe")
open_bundled = cache(open_vocabulary)


def make_words(count, seed):
    draw = random.Random(seed)
    return ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(count)]


WORDS = make_words(300, seed=0)


def make_sentences(count, seed, words=WORDS):
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(count)]


def train_sentencepiece(folder, name):
    text = folder / "train.txt"
    text.write_text("\n".join(make_sentences(1000, seed=0)), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / name), minloglevel=2, **MODELS[name]
    )
    return folder / f"{name}.model"


def make_list(folder, kind):
    lines = (f"u{n} {text}\n" for n, text in enumerate(make_sentences(1000, seed=0)))
    (folder / "text").write_text("".join(lines), encoding="utf-8")
    tokens = folder / kind / "tokens.txt"
    make_token_list([folder / "text"], tokens, TokenOptions(token_type=kind, nbpe=100))
    return tokens


# Once per process, for all tests:


@cache
def shared_folder():
    return tempfile.TemporaryDirectory()


@cache
def shared_vocabularies():
    """Return vocabularies by name; the files of the trained ones are in ``shared_folder``."""
    folder = Path(shared_folder().name)
    result = {name: open_bundled(name) for name in BUNDLED}
    result |= {name: open_vocabulary(train_sentencepiece(folder, name)) for name in MODELS}
    return result | {kind: open_vocabulary(make_list(folder, kind)) for kind in LISTS}


@cache
def shared_map(source, target):
    return map_vocabularies(shared_vocabularies()[source], shared_vocabularies()[target])
