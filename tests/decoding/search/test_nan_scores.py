"""Searches raise an error if the decoder's scores are NaN."""

import math

from beam_oracle import make_weights
from cases import cases
from refusals import assert_refused
from searches import build_search, constraints_of, our_search, run_search
from tiny import random_encoder_out, shared_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.greedy import sampling_search
from espnet_medusa.decoding.search.search_options import SearchOptions


def built(**options):
    return lambda decoder: build_search(build_runtime(decoder), SearchOptions(**options))


def sampling(decoder):
    return sampling_search(build_runtime(decoder), constraints_of(), 0.5)


def with_scorers(decoder):
    return our_search(decoder, 0, make_weights(ctc=0.3, lm=0.3), 3, DraftShape(3, 3))


@cases(
    (built(search="greedy"),), (built(search="greedy", draft_depth=0),),
    (built(search="greedy", acceptance="typical"),), (built(search="greedy", acceptance="top_m"),),
    (built(search="greedy", acceptance="threshold"),), (sampling,), (built(),), (with_scorers,),
    (built(patience=1.0),), (built(acceptance="threshold", threshold=0.2),),
)  # fmt: skip
def test_an_utterance_without_numbers_is_refused(build):
    encoder_out, lengths = random_encoder_out(0, [9, 7])
    search = build(shared_decoder(0, "recurrent", 4))
    assert all(state.n_best for state in run_search(search, encoder_out, lengths, 6))
    encoder_out[1] = math.nan
    assert_refused("scores of the next token are NaN", run_search, search, encoder_out, lengths, 6)
