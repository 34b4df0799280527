"""Precisions: what they round, and that drafts in 8 bits do not change results."""

import torch
from cases import combinations
from grown_trees import relative_error
from kernel_kinds import rounded
from refusals import refuses
from searches import assert_plain, build_search, run_search
from tiny import EOS, HEADS, random_encoder_out, tiny_decoder

from espnet_medusa.decoding.runtime import precision
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.linear import Int8Linear, largest_weight
from espnet_medusa.decoding.search.drafters import DraftSources
from espnet_medusa.decoding.search.search_options import SearchOptions

LENGTHS = [9, 4]


def search_of(decoder, **options):
    options = SearchOptions(**options)
    sources = DraftSources(frequent_tokens=decoder.draft_vocabulary)
    return build_search(build_runtime(decoder, options.decoder_precision), options, sources=sources)


def run(search):
    return run_search(search, *random_encoder_out(0, LENGTHS), 15)


@combinations(rows=[1, 3, 17], size=[(11, 32), (500, 160)])
def test_int8_projection_is_the_product_of_rounded_numbers(size, rows):
    torch.manual_seed(rows)
    weight, hidden = torch.randn(size), torch.randn(rows, size[1])
    result = Int8Linear(weight)(hidden)
    assert 0 < relative_error(result, hidden @ weight.t()) < 0.02
    # All rows of the input share one scale.
    weight = rounded(weight, largest_weight())
    hidden = rounded(hidden.view(1, -1)).view(hidden.shape)
    torch.testing.assert_close(result.double(), hidden @ weight.t(), rtol=0.0, atol=1e-3)


def test_int8_projection_of_zeros_is_zero():
    weight = torch.randn(5, 8)
    weight[2] = 0
    product = Int8Linear(weight)(torch.stack([torch.zeros(8), torch.ones(8)]))
    assert torch.isfinite(product).all() and not product[0].any() and product[1, 2] == 0


@combinations(heads=HEADS, seed=range(4))
def test_int8_drafts_leave_text_and_nbest_exact(seed, heads):
    decoder = tiny_decoder(seed, heads)
    states = run(search_of(decoder, search="greedy", draft_precision="int8"))
    assert_plain(decoder, *random_encoder_out(0, LENGTHS), states, [15, 15], prompt=[EOS])
    drafted, plain = (
        [[ended.tokens for ended in state.ended] for state in run(search_of(decoder, **options))]
        for options in ({"draft_precision": "int8"}, {"draft_depth": 0})
    )
    assert drafted == plain


@refuses(
    ({"decoder_precision": "int4"}, "'int4' is not known.*allowed: float32, bfloat16"),
    ({"decoder_precision": "bf16"}, "decoder_precision: 'bf16'.*bfloat16, float16"),
    ({"decoder_precision": "float16"}, "float16; allowed on a CPU: float32, bfloat16, int8"),
    ({"draft_precision": "bfloat16"}, "draft_precision: 'bfloat16' is not known.*int8"),
    ({"decoder_precision": "int8", "draft_precision": "float32"}, "'float32'.*allowed: int8$"),
    ({"draft_vocab_size": 5}, "draft_vocab_size: 5; this model has no counts"),
)
def test_impossible_options_are_refused(options):
    search_of(tiny_decoder(0, "recurrent"), search="greedy", **options)


def test_missing_bfloat16_instructions_are_logged(monkeypatch, caplog):
    monkeypatch.setattr(precision, "has_bfloat16_instructions", lambda: False)
    build_runtime(tiny_decoder(0), "bfloat16")
    assert "float32 will be faster" in caplog.text


def test_default_precision_is_the_models():
    assert build_runtime(tiny_decoder(0)).dtype == torch.float32
    assert build_runtime(tiny_decoder(0).bfloat16()).dtype == torch.bfloat16
    assert build_runtime(tiny_decoder(0).bfloat16(), "float32").dtype == torch.float32


def test_draft_vocabulary_is_the_most_frequent_tokens_and_eos():
    decoder = tiny_decoder(0, "linear")
    decoder.count_tokens(torch.tensor([3, 3, 3, 7, 7, 1]))
    assert decoder.draft_vocabulary(3, EOS).tolist() == [3, 7, EOS]
    assert decoder.draft_vocabulary(9, EOS).tolist() == [1, 3, 7, EOS], "no token without a count"


def test_tokens_that_are_never_allowed_are_not_drafted():
    decoder = tiny_decoder(0, "linear")
    decoder.count_tokens(torch.tensor([3, 3, 3, 7, 7, 1]))
    search = search_of(decoder, search="greedy", draft_vocab_size=9, suppress_tokens=[2, 3])
    assert search.planner.proposer.vocabulary.tolist() == [1, 7, EOS]


@combinations(name=["float32", "bfloat16", "int8"], heads=HEADS)
def test_searches_do_not_need_the_modules_weights(heads, name):
    decoder = tiny_decoder(0, heads)
    search = search_of(decoder, search="greedy", decoder_precision=name)
    before = [state.tokens for state in run(search)]
    decoder.release()
    assert not any(weight.numel() for weight in decoder.state_dict().values())
    assert [state.tokens for state in run(search)] == before
