"""Compare random searches with the oracles: greedy search without drafts, ESPnet's beam search.

python tests/endurance/random_searches.py --cases 10000 --table tests/endurance/checks.md

A third of the cases are greedy. Each is a batch of one to four utterances, whose tiny decoder,
drafter, shapes of drafts, weights, limits and constraints are random; beams are up to three wider
than the vocabulary. If CTC finds a prefix impossible, ESPnet's score of it may rise again later. A
beam case that differs is therefore compared again with an ESPnet search whose CTC scores only fall,
and counts as a mismatch if it still differs. Exit status 1: there is a mismatch.
"""

import random
from collections import Counter
from pathlib import Path

import harness
import searches
from beam_oracle import UncachedScorer, WideBeamSearch, espnet_search, random_weights
from harness import DIFFERS, EQUAL, EQUAL_FALLING
from searches import DRAFT_MODELS, HEADS, beam_shape, compare, our_search
from tiny import VOCAB_SIZE, random_encoder_out

from espnet_medusa.decoding.search.search_options import LengthLimits

DRAFTERS = [*HEADS, "none", *DRAFT_MODELS]
WIDEST_BEAM = VOCAB_SIZE + 3
CONSTRAINTS = [
    *({}, {}, {}), {"suppress_tokens": [0, 2]}, {"begin_suppress_tokens": [1, 3, 4]},
    {"forced_prefix": [4, 4, 9, 2, 1]}, {"exponential_decay_length_penalty": [3, 1.2]},
]  # fmt: skip


def greedy_case(rng: random.Random, seed: int) -> str:
    drafter, num_heads = rng.choice(DRAFTERS), rng.choice([1, 4, 6])
    module, decoder = searches.drafted_by(seed, drafter, num_heads)
    frames = [rng.randint(1, 14) for _ in range(rng.randint(1, 4))]
    memory, lengths = random_encoder_out(seed, frames)
    most = [rng.choice([1, 2, 3, 7, 25, 50]) for _ in frames]
    least = [rng.randint(0, longest) if rng.random() < 0.3 else 0 for longest in most]
    shape = searches.greedy_shape(rng, 8 if drafter in DRAFT_MODELS else decoder.num_heads)
    try:
        searches.decode_exactly(module, memory, lengths, most, least, decoder, shape=shape)
    except AssertionError:
        return DIFFERS
    return EQUAL


def beam_case(rng: random.Random, seed: int) -> str:
    module, decoder = searches.drafted_by(seed, rng.choice(DRAFTERS), rng.choice([1, 4, 6]))
    beam_size, weights = rng.randint(1, WIDEST_BEAM), random_weights(rng)
    options = rng.choice(CONSTRAINTS)
    # ESPnet has no constraints: its end detection would count hypotheses with forbidden tokens.
    detect_end = [] if options else [0.0, 0.0]
    limits = LengthLimits(rng.choice([*detect_end, 0.5, 0.9, -1, -6]), rng.choice([0.0, 0.2, -2]))
    # ESPnet's CTC scorer fails with more labels than frames.
    frames = [rng.randint(7, 12) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
    constraints = searches.constraints_of(**options)
    normalize = {"normalize_length": rng.random() < 0.3}
    shape, nbest = beam_shape(rng, decoder, beam_size), searches.random_nbest(rng, beam_size)
    ranking = normalize | {"nbest": nbest}
    search = our_search(decoder, seed, weights, beam_size, shape, constraints, **ranking)
    scorer = UncachedScorer(module, constraints)
    for outcome, falling in ((EQUAL, False), (EQUAL_FALLING, True)):
        kinds = {"kind": WideBeamSearch, "falling": falling}
        oracle = espnet_search(scorer, seed, weights, beam_size, **kinds, **normalize)
        try:
            compare(search, *random_encoder_out(seed, frames), oracle, limits)
        except AssertionError:
            continue
        return outcome
    return DIFFERS


def is_greedy(rng: random.Random) -> bool:
    return rng.random() < 1 / 3


def outcomes_of(seed: int, _: Path) -> list[str]:
    rng = random.Random(seed)
    return [(greedy_case if is_greedy(rng) else beam_case)(rng, seed)]


def figures(outcomes: Counter[str], seeds: range) -> str:
    greedy = sum(is_greedy(random.Random(seed)) for seed in seeds)
    return (
        f"{greedy:,} greedy and {len(seeds) - greedy:,} beam cases, beams of 1 to "
        f"{WIDEST_BEAM} over {VOCAB_SIZE} tokens: {outcomes[DIFFERS]} mismatches; "
        f"{outcomes[EQUAL_FALLING]} match only after clamping ESPnet's CTC scores"
    )


main = harness.make_random_check("random searches", __file__, __doc__, 10000, outcomes_of, figures)


if __name__ == "__main__":
    main()
