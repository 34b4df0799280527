"""Precisions: what they round, and that drafts in 8 bits do not change results."""

import torch
from cases import cases, combinations
from refusals import assert_refused, refuses
from searches import assert_plain, build_search, run_search
from tiny import EOS, HEADS, random_encoder_out, tiny_decoder

from espnet_medusa.decoding.runtime import precision
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.drafters import DraftSources
from espnet_medusa.decoding.search.search_options import SearchOptions

LENGTHS = [9, 4]


def search_of(decoder, **options):
    options = SearchOptions(**options)
    sources = DraftSources(frequent_tokens=decoder.draft_vocabulary)
    return build_search(build_runtime(decoder, options.decoder_precision), options, sources=sources)


def run(search):
    return run_search(search, *random_encoder_out(0, LENGTHS), 15)


# Per processor (GPU, kernels, bfloat16 instructions): decoder and encoder of each precision.
CHOSEN = {
    (True, False, False): {
        "float32": "float32 float32", "bfloat16": "bfloat16 bfloat16",
        "float16": "float16 float16",
    },
    (False, False, False): {
        "float32": "float32 float32", "bfloat16": "bfloat16 bfloat16", "int8": "float32 float32",
    },
    (False, False, True): {
        "float32": "float32 float32", "bfloat16": "bfloat16 bfloat16",
        "int8": "bfloat16 bfloat16",
    },
    (False, True, False): {
        "float32": "float32 float32", "bfloat16": "bfloat16 bfloat16", "int8": "int8 int8",
    },
    (False, True, True): {
        "float32": "float32 float32", "bfloat16": "bfloat16 bfloat16 kernels",
        "int8": "int8 int8",
    },
}  # fmt: skip


@cases(*CHOSEN.items())
def test_the_table_of_implementations(processor, chosen, monkeypatch):
    gpu, kernels, bfloat16 = processor
    monkeypatch.setattr(precision, "kernels", lambda: object() if kernels else None)
    monkeypatch.setattr(precision, "has_bfloat16_instructions", lambda: bfloat16)
    device, found = torch.device("cuda" if gpu else "cpu"), {}
    for name in precision.PRECISIONS:
        if name not in chosen:
            for choose in (precision.encoder_precision, precision.check_precision):
                rest = [device, "option"][: 1 + (choose is precision.check_precision)]
                assert_refused(f"{name}; allowed on a", choose, name, *rest)
            continue
        decoder = precision.decoder_precision(name, device, torch.float64)
        encoder = precision.encoder_precision(name, device)
        found[name] = f"{decoder} {encoder}"
        drafts = precision.draft_precision(name, decoder, device)
        assert drafts == decoder
    assert found == {name: names.replace("int8", "int8 kernels") for name, names in chosen.items()}
    assert precision.has_kernels(device) == (kernels and not gpu)
    assert precision.decoder_precision(None, device, torch.float64).dtype == torch.float64


@combinations(heads=HEADS, seed=range(2))
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
