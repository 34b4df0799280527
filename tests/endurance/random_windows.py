"""Compare random beam searches over long inputs and CTC windows with ESPnet's (202611 or newer).

python tests/endurance/random_windows.py --cases 3000 --table tests/endurance/checks.md

A case is an utterance, in a batch of one to three, with 300 to 1,500 encoder frames, silences and
repeated phrases. Prompts, drafters, shapes of drafts, weights, limits and beams are random. Margins
of 5 to 40 frames change the lists; 100 is ESPnet's default. ESPnet adds up over frames in float32,
so that a hypothesis may reach another frame where many are nearly equal. A batch that differs is
therefore compared again with CTC scores in float64. Hypotheses with more tokens than fit into the
last frames are impossible, and ESPnet's scores of them may rise again later, so that it is compared
once more with scores that only fall. It counts as mismatches if it still differs. Exit status 1:
there is a mismatch.
"""

import random
from collections import Counter
from pathlib import Path

import harness
import searches
from beam_oracle import FallingCTC, espnet_search, make_weights
from harness import DIFFERS, EQUAL, EQUAL_DOUBLE, EQUAL_FALLING
from long_speech import DoubleCTC, EncodedCTC, random_speech
from searches import beam_shape, compare, our_search
from tiny import EOS, VOCAB_SIZE

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.draft.ctc import CTCProposer
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.networks.espnet_compat import SAME_CTC_WINDOW, CTCPrefixScorer

MARGINS = [5, 10, 20, 40, 40, 100]
DRAFTERS = ["none", "linear", "block", "recurrent", "attending", "near", "ctc", "ctc"]
POSITIONS = 1600


def window_case(rng: random.Random, seed: int) -> list[str]:
    drafter = rng.choice(DRAFTERS)
    heads, proposer = drafter, None
    if drafter == "ctc":
        heads, proposer = "none", CTCProposer(EncodedCTC.log_softmax, VOCAB_SIZE, EOS)
    sizes = {"max_target_positions": POSITIONS}
    module, decoder = searches.drafted_by(seed, heads, rng.choice([1, 4, 6]), **sizes)
    weights = make_weights(
        ctc=rng.choice([0.3, 0.3, 0.5, 0.8]),
        lm=rng.choice([0.0, 0.0, 0.0, 0.3]),
        length_bonus=rng.choice([0.0, 0.0, 0.5, 1.5]),
    )
    # A beam without enough possible tokens would contain impossible ones, in any order.
    beam_size, margin = rng.randint(1, 6), rng.choice(MARGINS)
    limits = LengthLimits(rng.choice([0.0, 0.03, -10, -20, -30, -40]), rng.choice([0, 0, -5]))
    longest = 400 if limits.maxlenratio == 0 else 1500
    frames = [rng.randint(300, longest) for _ in range(rng.choice([1, 1, 2, 3]))]
    audio, prompt = random_speech(rng, frames), rng.choice([[EOS], [EOS], [3, 1], [5, 2, 2, 8]])
    shape = beam_shape(rng, decoder, beam_size, proposer)
    nbest, normalize = searches.random_nbest(rng, beam_size), rng.random() < 0.3
    given, ranking = (seed, weights, beam_size), {"normalize_length": normalize}
    for outcome, branch, scorer in (
        (EQUAL, EncodedCTC, CTCPrefixScorer),
        (EQUAL_DOUBLE, DoubleCTC, CTCPrefixScorer),
        (EQUAL_FALLING, DoubleCTC, FallingCTC),
    ):
        parts = {"ctc": branch, "window_margin": margin, "nbest": nbest, "proposer": proposer}
        search = our_search(decoder, *given, shape, **parts, **ranking)
        ctc = scorer(branch, EOS, window_margin=margin)
        oracle = espnet_search(module, *given, ctc=ctc, hyp_primer=prompt, **ranking)
        try:
            compare(search, *audio, oracle, limits, prompt)
        except AssertionError:
            continue
        return [outcome] * len(frames)
    return [DIFFERS] * len(frames)


def outcomes_of(seed: int, _: Path) -> list[str]:
    if not SAME_CTC_WINDOW:
        raise InputError("espnet: its CTC has no window; install ESPnet 202611 or newer")
    return window_case(random.Random(seed), seed)


def figures(outcomes: Counter[str], seeds: range) -> str:
    return (
        f"{outcomes.total():,} utterances of 300 to 1,500 frames in {len(seeds):,} batches, with "
        f"margins of {MARGINS[0]} to {MARGINS[-1]}: {outcomes[DIFFERS]} mismatches; "
        f"{outcomes[EQUAL_DOUBLE]} match only in float64, {outcomes[EQUAL_FALLING]} only after "
        "clamping ESPnet's CTC scores"
    )


main = harness.make_random_check(
    "random searches over windows", __file__, __doc__, 3000, outcomes_of, figures
)


if __name__ == "__main__":
    main()
