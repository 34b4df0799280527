"""Precisions and draft vocabularies: what may round, and what must not change."""

import pytest
import torch
from tiny import EOS, VOCAB_SIZE, plain_greedy, random_memory, tiny_decoder

from espnet_medusa.errors import InputError
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.runtime.linear import Int8Linear
from espnet_medusa.search.build import build_beam, build_greedy
from espnet_medusa.search.drafters import DraftSources
from espnet_medusa.search.options import LengthLimits, SearchOptions

CPU = torch.device("cpu")
HEADS = ["linear", "block", "recurrent", "attending"]
LENGTHS = [9, 4]


def greedy_search(decoder, **options):
    options = SearchOptions(search="greedy", **options)
    runtime = build_runtime(decoder, options.decoder_precision)
    sources = DraftSources(frequent_tokens=decoder.draft_vocabulary)
    return build_greedy(options, runtime, VOCAB_SIZE, EOS, CPU, sources)


def greedy(decoder, **options):
    return run(greedy_search(decoder, **options))


def beam(decoder, **options):
    options, weights = SearchOptions(**options), {"decoder": 1.0}
    runtime = build_runtime(decoder, options.decoder_precision)
    search = build_beam(
        *(options, runtime, {}, None, weights, 3, VOCAB_SIZE, EOS, False, CPU),
        DraftSources(frequent_tokens=decoder.draft_vocabulary),
    )
    return run(search)


def run(search):
    memory, lengths = random_memory(0, LENGTHS)
    return search(memory, lengths, torch.full((2, 1), EOS), LengthLimits(-15))


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("size", [(11, 32), (500, 160)])
def test_int8_projection_is_close(size, rows):
    torch.manual_seed(rows)
    weight, hidden = torch.randn(size), torch.randn(rows, size[1])
    expected = hidden @ weight.t()
    error = Int8Linear(weight)(hidden) - expected
    # Two roundings to 255 steps over some 6 standard deviations, to 127 without VNNI.
    assert error.std() < 0.02 * expected.std()
    assert error.abs().max() < 0.1 * expected.std()


def test_int8_projection_of_nothing_is_nothing():
    weight = torch.randn(5, 8)
    weight[2] = 0
    found = Int8Linear(weight)(torch.stack([torch.zeros(8), torch.ones(8)]))
    assert torch.isfinite(found).all() and not found[0].any() and found[1, 2] == 0


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("seed", range(4))
def test_int8_drafts_leave_text_and_nbest_exact(seed, heads):
    decoder = tiny_decoder(seed, heads)
    search_states = greedy(decoder, draft_precision="int8")
    memory, lengths = random_memory(0, LENGTHS)
    for search_state, row, frames in zip(search_states, memory, lengths, strict=True):
        tokens, score, _ = plain_greedy(decoder, row[None, :frames], [EOS], 15)
        assert search_state.tokens == tokens
        assert abs(search_state.hypothesis.score - score) < 1e-3
    for found, expected in zip(
        beam(decoder, draft_precision="int8"), beam(decoder, draft_depth=0), strict=True
    ):
        assert [e.tokens for e in found.ended] == [e.tokens for e in expected.ended]


def test_int8_decoder_says_what_its_logits_are():
    decoder = tiny_decoder(0, "block")
    memory, lengths = random_memory(0, LENGTHS)
    runtime = build_runtime(decoder, "int8")
    state = runtime.start(memory, lengths)
    found = runtime.logits(runtime.extend(state, [[1], [2]], [[-1], [-1]]).hidden)
    hidden = decoder.hidden_states(memory, lengths, torch.tensor([[1], [2]])).hidden[:, 0]
    expected = decoder.logits(hidden)
    assert (found - expected).abs().max() < 0.1 * expected.std()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder_precision": "int4"}, "'int4' is not known.*allowed: float32, bfloat16"),
        ({"decoder_precision": "float16"}, "float16; allowed on a CPU: float32, bfloat16, int8"),
        ({"draft_precision": "bfloat16"}, "draft_precision: 'bfloat16' is not known.*int8"),
        ({"draft_vocab_size": 5}, "draft_vocab_size: 5; this model holds no counts"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        greedy(tiny_decoder(0, "recurrent"), **options)


def test_draft_vocabulary_is_the_most_frequent_tokens_and_the_end():
    decoder = tiny_decoder(0, "linear")
    decoder.count_tokens(torch.tensor([3, 3, 3, 7, 7, 1]))
    assert decoder.draft_vocabulary(3, EOS).tolist() == [3, 7, EOS]
    # Tokens that were never seen are left out, however many are asked for.
    assert decoder.draft_vocabulary(9, EOS).tolist() == [1, 3, 7, EOS]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("heads", HEADS)
@torch.no_grad()
def test_released_weights_leave_searches_as_they_were(heads, name):
    decoder = tiny_decoder(0, heads)
    search = greedy_search(decoder, decoder_precision=name)
    before = [search_state.tokens for search_state in run(search)]
    decoder.release()
    assert not any(weight.numel() for weight in decoder.state_dict().values())
    assert [search_state.tokens for search_state in run(search)] == before
