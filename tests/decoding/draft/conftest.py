"""Fixtures of drafter tests: native kernels, vocabularies of every kind and their translations."""

from functools import cache

import pytest
from kernel_kinds import kind  # noqa: F401  a fixture
from made_vocabularies import shared_map, shared_vocabularies
from tiny import EOS, VOCAB_SIZE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from espnet_medusa.data.vocabulary.mapping import map_vocabularies
from espnet_medusa.data.vocabulary.translation import Translation
from espnet_medusa.networks.tokenizers import hugging_face_vocabulary, token_list_vocabulary

# Merges in order; the tokens are symbols, merges and the end token.
COARSE = [("b", "a"), ("Ġ", "ba"), ("k", "o"), ("Ġ", "ko")]
FINE = [("a", "k"), ("Ġ", "b"), ("a", "Ġ"), ("o", "k"), ("ak", "o"), ("Ġb", "ako")]
SYMBOLS = ["a", "b", "k", "o", "Ġ", "m"]
END = "<|endoftext|>"


def byte_level(symbols, merges):
    """Return a byte-level BPE vocabulary whose last token is the end token."""
    tokens = [*symbols, *map("".join, merges), END]
    model = models.BPE({token: number for number, token in enumerate(tokens)}, merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"eos_token": END, "bos_token": END}
    return hugging_face_vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special))


@pytest.fixture(autouse=True)
def without_gradients(no_gradients):
    """Run the tests of this folder without gradients."""


@pytest.fixture(scope="package")
def vocabularies():
    """Vocabularies by name; "coarse" and "characters" have VOCAB_SIZE tokens and end in EOS."""
    result = {**shared_vocabularies()}
    result["coarse"] = byte_level(SYMBOLS, COARSE)
    result["fine"] = byte_level(SYMBOLS, FINE)
    result["few"] = byte_level(["b", "a", "Ġ"], [])
    characters = [*"abkolmü", "<space>", "é", "ß", "<sos/eos>"]
    result["characters"] = token_list_vocabulary(characters, "char")
    shuffled = ["<blank>", *"ßéokb", "<unk>", *"aüml", "<space>", "<sos/eos>"]
    result["shuffled characters"] = token_list_vocabulary(shuffled, "char")
    assert len(result["coarse"]) == len(result["characters"]) == VOCAB_SIZE
    assert result["coarse"].end == result["characters"].end == EOS
    return result


@pytest.fixture(scope="package")
def translations(vocabularies):
    """A cached function from the names of main and draft vocabulary to their translation."""

    @cache
    def mapped(*names):
        if shared_vocabularies().keys() >= {*names}:
            return shared_map(*names)
        return map_vocabularies(*map(vocabularies.get, names))

    return cache(lambda main, draft: Translation(mapped(main, draft), mapped(draft, main)))
