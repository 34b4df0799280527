"""Units from Whisper's vocabularies, against byte-pair encoding with fewer merges."""

import pytest
from tiktoken import Encoding
from whisper.tokenizer import get_encoding

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.vocabulary.byte_pairs import BytePairUnits
from espnet_medusa.networks.whisper.tokens import make_tokenizer

TEXTS = [
    " Mister Quilter is the apostle of the middle classes, and we're glad to welcome his gospel.",
    "",
    " x",
    "  Two  spaces, 1,234.5%\n",
    " Überraschung, naïveté, 你好 🙂 ♪",
    "antidisestablishmentarianism" * 3,
]


@pytest.fixture(scope="module", params=[51864, 51865])
def tokenizer(request):
    return make_tokenizer(request.param)


def names(tokenizer):
    return tokenizer.convert_ids_to_tokens(range(len(tokenizer)))


@pytest.mark.parametrize("size", [256, 300, 512, 2048, 50000])
def test_units_equal_byte_pair_encoding_with_fewer_merges(tokenizer, size):
    whole = get_encoding("gpt2" if len(tokenizer) == 51864 else "multilingual")
    ranks = {text: rank for text, rank in whole._mergeable_ranks.items() if rank < size}
    fewer = {"pat_str": whole._pat_str, "mergeable_ranks": ranks, "special_tokens": {}}
    units, expected = BytePairUnits(names(tokenizer), size), Encoding("fewer", **fewer)
    assert len(units) == size
    for text in TEXTS:
        spelled = units.spell(tokenizer.encode(text, add_special_tokens=False))
        assert spelled == expected.encode(text)
        assert b"".join(units.contents[unit] for unit in spelled).decode() == text


def test_special_tokens_have_no_units(tokenizer):
    units = BytePairUnits(names(tokenizer), 256)
    ids = tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|endoftext|>", "<|1.20|>"])
    assert units.spell(ids[:2]) == []
    text = tokenizer.encode(" <|en|", add_special_tokens=False)
    assert bytes(units.spell(text)) != b"", "text that only looks like one"


def test_other_vocabularies_are_refused(tokenizer):
    for size in (255, 51000):
        with pytest.raises(InputError, match=f"{size} byte-pair units; allowed: 256 .* to 502"):
            BytePairUnits(names(tokenizer), size)
    with pytest.raises(InputError, match="does not begin with the 256 bytes.*Whisper's tokens"):
        BytePairUnits(["<blank>", "<unk>", *map(chr, range(97, 123))], 300)
