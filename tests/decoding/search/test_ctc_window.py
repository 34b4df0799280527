"""Beam search with CTC scores over windows has the n-best list of ESPnet's search with them."""

import random

import pytest
import searches
import torch
from beam_oracle import UncachedScorer, espnet_search, make_weights
from cases import cases, combinations
from long_speech import DoubleCTC, EncodedCTC, random_speech
from searches import beam_shape, compare, our_search
from tiny import EOS, VOCAB_SIZE, shared_decoder
from windowed_ctc import WindowedCTC

from espnet_medusa.decoding.draft.ctc import CTCProposer
from espnet_medusa.decoding.search.ctc_prefix import CTCPrefix
from espnet_medusa.decoding.search.ctc_window import CTCWindows
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.networks.espnet_compat import SAME_CTC_WINDOW, CTCPrefixScorer

WINDOW = pytest.mark.skipif(not SAME_CTC_WINDOW, reason="this ESPnet's CTC has no window")
DRAFTERS = ["none", "recurrent", "near", "ctc"]


def search_with(drafter, seed, weights, beam_size, rng, **options):
    """Return a module and our search with its drafts."""
    heads, proposer = drafter, None
    if drafter == "ctc":
        heads, proposer = "none", CTCProposer(EncodedCTC.log_softmax, VOCAB_SIZE, EOS)
    module, decoder = searches.drafted_by(seed, heads, max_target_positions=160)
    shape = beam_shape(rng, decoder, beam_size, proposer)
    options |= {"ctc": DoubleCTC, "proposer": proposer}
    return module, our_search(decoder, seed, weights, beam_size, shape, **options)


def assert_espnets(rng, seed, drafter, make_ctc, prompt):
    weights = make_weights(ctc=rng.choice([0.3, 0.6]), length_bonus=rng.choice([0.0, 0.8]))
    beam_size, margin = rng.randint(1, 5), rng.choice([1, 3, 8])
    ranking = {"normalize_length": rng.random() < 0.3}
    options = ranking | {"window_margin": margin, "nbest": searches.random_nbest(rng, beam_size)}
    module, search = search_with(drafter, seed, weights, beam_size, rng, **options)
    ctc, scorer = make_ctc(margin), UncachedScorer(module, prompt_length=len(prompt))
    oracle = espnet_search(scorer, seed, weights, beam_size, ctc=ctc, hyp_primer=prompt, **ranking)
    limits = LengthLimits(rng.choice([0.0, 0.2, -12]), rng.choice([0, -4]))
    audio = random_speech(rng, [rng.randint(40, 110) for _ in range(rng.choice([1, 3]))])
    return compare(search, *audio, oracle, limits, prompt)


@WINDOW
@combinations(drafter=DRAFTERS, seed=range(6))
def test_nbest_equals_espnets_over_windows(drafter, seed):
    rng = random.Random(f"{seed} {drafter}")
    prompt = rng.choice([[EOS], [3, 1, 2]])
    make_ctc = lambda margin: CTCPrefixScorer(DoubleCTC, EOS, window_margin=margin)  # noqa: E731
    assert_espnets(rng, seed, drafter, make_ctc, prompt)


@combinations(drafter=DRAFTERS, seed=range(6))
def test_nbest_equals_windows_frame_by_frame(drafter, seed):
    rng = random.Random(f"plain {seed} {drafter}")
    prompt = rng.choice([[EOS], [3, 1, 2]])
    assert_espnets(rng, seed, drafter, lambda margin: WindowedCTC(DoubleCTC, EOS, margin), prompt)


@combinations(seed=range(4))
def test_a_small_window_changes_lists_and_a_large_one_does_not(seed):
    rng, weights = random.Random(seed), make_weights(ctc=0.6)
    audio, lists = random_speech(rng, [150]), []
    for margin in (0, 2, 1000):
        search = our_search(
            shared_decoder(seed, "none"), seed, weights, 4, DraftShape(0), ctc=DoubleCTC,
            window_margin=margin,
        )  # fmt: skip
        (state,) = search(*audio, torch.tensor([[EOS]]), LengthLimits(-14))
        lists.append([(ended.tokens, ended.score) for ended in state.ended])
    assert lists[0] != lists[1] and lists[0] == lists[2]


@combinations(seed=[3, 10])
def test_windows_do_not_depend_on_the_number_of_requested_hypotheses(seed, monkeypatch):
    """Hypotheses that cannot reach the list still move the window, as in ESPnet."""
    rng, after, windows = random.Random(seed), CTCWindows.after, []

    def record(*arguments):
        windows.append(after(*arguments))
        return windows[-1]

    monkeypatch.setattr(CTCWindows, "after", record)
    audio, found = random_speech(rng, [60]), []
    given = shared_decoder(seed, "none"), seed, make_weights(ctc=0.3), 5, DraftShape(0)
    for nbest in (None, 1):
        search = our_search(*given, ctc=DoubleCTC, window_margin=2, nbest=nbest)
        search(*audio, torch.tensor([[EOS]]), LengthLimits(-16))
        found.append([(window.start, window.end) for window in dict.fromkeys(windows)])
        windows.clear()
    assert found[1] == found[0][: len(found[1])]


@combinations(seed=range(3))
def test_batch_equals_singles(seed):
    rng = random.Random(f"batch {seed}")
    options = {"window_margin": 3, "nbest": 1}
    _, search = search_with("ctc", seed, make_weights(ctc=0.5), 4, rng, **options)

    def search_rows(rows, *audio):
        return search(*audio, torch.tensor([[EOS]] * len(rows)), LengthLimits(-12))

    searches.assert_same_alone(search_rows, *random_speech(rng, [90, 40, 61, 120]))


ENDS = (10, 3, 41), (10, 30, 41), (10, 31, 42), (60, 8, 69), (60, 2, 66), (70, 3, 100)


@cases(*ENDS, (0, 200, 100))
def test_a_window_extends_over_silence(latest, margin, end):
    log_probs = torch.zeros(100, VOCAB_SIZE)
    log_probs[:, 0] = 5.0
    log_probs[[11, 12, 13, 26, 40, 50, 51, 61, 62, 63, 64, 65, 66], 3] = 9.0
    ctc = CTCPrefix(log_probs.log_softmax(-1), 0, EOS, window_margin=margin)
    assert ctc.windows._end(latest) == end


def test_equal_windows_after_equal_steps_are_one_object():
    log_probs = random_speech(random.Random(3), [50])[0][0, :, :VOCAB_SIZE].log_softmax(-1)
    ctc = CTCPrefix(log_probs, 0, EOS, window_margin=2)
    root = Prefix(EOS)
    first = ctc.window([root], None)
    assert first is ctc.window([root], None)
    one, other = root.child(4), root.child(5)
    second = ctc.window([one, other], first)
    known = one.ctc
    assert second is ctc.window([one, other], first) and one.ctc is known
    assert second is not first and second.start >= first.start and second.end >= first.end
