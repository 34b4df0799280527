"""Depths follow acceptance; texts do not depend on depths that change."""

import itertools
import math
import random

import torch
from beam_oracle import make_weights
from cases import cases, combinations
from searches import decode, decode_exactly, drafted_by, our_search, with_draft
from tiny import EOS, random_encoder_out, shared_decoder

from espnet_medusa.decoding.search.drafting.auto_depth import AutoDepth
from espnet_medusa.decoding.search.drafting.lookahead import ByAcceptance, DraftShape
from espnet_medusa.decoding.search.greedy import GreedyState
from espnet_medusa.decoding.search.scores import UtteranceScorers
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.search.state import Draft
from espnet_medusa.decoding.tree.prefix import Prefix


def after(limit, depth, accepted):
    state = GreedyState(Prefix(0), UtteranceScorers(), 100)
    state.draft = Draft([], depth=depth, limit=limit, accepted_steps=accepted)
    state.statistics.count_drafts(max(depth, 1), accepted)
    return state


@cases(
    (math.inf, 0, 0, 5),
    (5, 5, 5, 6),
    (5, 5, 4, 5),  # 0.8 is not above 0.8
    (5, 5, 2, 5),
    (5, 5, 1, 4),
    (10, 10, 3, 10),  # 0.3 is not below 0.3
    (2, 2, 0, 2),  # bounds
    (8, 8, 8, 8),
    (6, 3, 3, 7),  # ended early, all accepted
    (4, 0, 0, 4),  # nothing drafted
)
def test_depth_by_acceptance(limit, depth, accepted, expected):
    assert ByAcceptance(2, max(8, depth), 5).depth(after(limit, depth, accepted)) == expected


def test_an_utterance_starts_with_the_rates_of_earlier_ones():
    chosen = ByAcceptance(1, 12, 2)
    new = GreedyState(Prefix(0), UtteranceScorers(), 100)
    assert chosen.depth(new) == 2
    for _ in range(50):
        chosen.depth(after(9, 9, 9))
    assert chosen.depth(new) == 10


def lookaheads():
    return [
        ByAcceptance(1, 7, 3),
        ByAcceptance(0, 9, 9),
        AutoDepth(3, range(9)),
        AutoDepth(0, range(6)),
    ]


@combinations(kind=["near", "other"], number=range(4))
def test_lookahead_does_not_change_greedy_text(number, kind):
    rng = random.Random(f"{number} {kind}")
    chosen, (module, decoder) = lookaheads()[number], drafted_by(number, kind)
    encoder_out, lengths = random_encoder_out(number, [8, 3, 11, 6])
    shape = DraftShape(chosen.most, rng.choice([1, 3]), lookahead=chosen)
    most, least = [40, 25, 7, 50], [30, 0, 0, 40]
    states = decode_exactly(module, encoder_out, lengths, most, least, decoder, shape=shape)
    assert all(len(state.statistics.drafted) <= chosen.most for state in states)


@combinations(ctc=[0.0, 0.3], number=range(4))
def test_lookahead_does_not_change_the_nbest_list(number, ctc):
    _, decoder = drafted_by(number, "near")
    encoder_out, lengths = random_encoder_out(number, [14, 9])
    nbest, chosen = [], lookaheads()[number]
    for shape in (DraftShape(0), DraftShape(chosen.most, 4, lookahead=chosen)):
        search = our_search(decoder, number, make_weights(ctc=ctc), 4, shape)
        states = search(encoder_out, lengths, torch.tensor([[EOS]] * 2), LengthLimits(-12))
        nbest.append([[ended.tokens for ended in state.ended] for state in states])
    assert nbest[0] == nbest[1]


def test_depth_grows_with_accepted_drafts_per_utterance():
    module = shared_decoder(3, "none")
    encoder_out, lengths = random_encoder_out(3, [12, 9])

    def drafted_steps(draft, rows):
        shape, most = DraftShape(9, lookahead=ByAcceptance(1, 9, 2)), [45] * len(rows)
        audio = encoder_out[rows], lengths[rows]
        states = decode(with_draft(module, draft), *audio, most, min_lengths=most, shape=shape)
        return [state.statistics.drafted for state in states]

    grown = drafted_steps(module, [0])[0]
    assert len(grown) > 5, "2, 3, 4, ... steps"
    assert all(shallow > deep for shallow, deep in itertools.pairwise(grown[2:])), grown
    other = shared_decoder(99, "none")
    alone = [drafted_steps(other, [row])[0] for row in (0, 1)]
    assert len(alone[0]) == 2 and alone[0][1] < alone[0][0], "down to a step and no further"
    assert drafted_steps(other, [0, 1]) == alone
