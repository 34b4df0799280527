"""Compare random searches of tiny s2t models (OWSM's shape) with ESPnet's own s2t_inference.

python tests/endurance/random_s2t.py --cases 3000 --table tests/endurance/checks.md

A case is one call: its previous text, language, task, timestamps, beam of 1 to 10, CTC weight and
limits are random. It is decoded alone and in a batch of three, without drafts, with CTC drafts,
with random heads and with drafts of another model. Every sixth case, model and options change. If
CTC finds a prefix impossible, ESPnet's score of it may rise again later. A case that differs is
therefore compared again with an ESPnet search whose CTC scores only fall, and then in float64. It
counts as a mismatch if it still differs. Exit status 1: there is a mismatch.
"""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import harness
import numpy as np
import s2t_experiment as s2t
from beam_oracle import FallingCTC
from espnet2.bin import s2t_inference as espnet
from harness import DIFFERS, EQUAL, EQUAL_DOUBLE, EQUAL_FALLING
from tiny import HEADS

from espnet_medusa.inference.s2t import S2TSpeech2Text

BATCH, BATCHES = 3, 2  # cases of a model: BATCH * BATCHES
REFUSED = "ESPnet fails"


class Searches:
    """ESPnet's search of a model, the same with CTC scores that only fall, and some of ours.

    ``drafting`` has the options of ours that differ.
    """

    def __init__(self, drafting: Sequence[dict], **options):
        self.theirs, falling = (espnet.Speech2Text(**options) for _ in range(2))
        if "ctc" in falling.beam_search.part_scorers:
            network = falling.s2t_model
            falling.beam_search.part_scorers["ctc"] = FallingCTC(network.ctc, network.eos)
        self.falling = falling
        self.ours = [S2TSpeech2Text(**options | changed) for changed in drafting]

    def compare(self, speeches: Sequence[np.ndarray], conditions: Sequence[dict]) -> list[str]:
        calls = [*zip(speeches, conditions, strict=True)]
        found = [[model(speech, **condition) for speech, condition in calls] for model in self.ours]
        batches = (model.decode(speeches, conditions) for model in self.ours)
        found += [[one.results for one in batch] for batch in batches]
        return [*map(self._outcome, calls, zip(*found, strict=True))]

    def _outcome(self, call: tuple, nbests: Sequence[list]) -> str:
        for outcome, oracle in ((EQUAL, self.theirs), (EQUAL_FALLING, self.falling)):
            expected = s2t.nbest_of(oracle, *call)
            if expected is None:
                return REFUSED
            if all(s2t.difference(nbest, expected) is None for nbest in nbests):
                return outcome
        return DIFFERS


def cases_of_a_model(seed: int, folder: Path) -> list[str]:
    rng = random.Random(seed)
    files, heads = s2t.make_s2t_experiment(folder / "base", seed), rng.choice(HEADS)
    s2t.make_s2t_experiment(folder / "other", seed + 1)
    drafter = rng.choice(["heads", "ctc+heads"])
    drafting = [
        *({}, {"drafter": "ctc"}, {"draft_model": folder / "other"}),
        s2t.add_heads(folder / heads, files, heads) | {"drafter": drafter, "draft_depth": 3},
    ]
    options, outcomes = files | s2t.random_options(rng), []
    searches = Searches(drafting, **options)
    for _ in range(BATCHES):
        calls = s2t.random_inputs(rng, BATCH)
        found = searches.compare(*calls)
        if DIFFERS in found:  # hypotheses whose scores are equal but for rounding
            exact = Searches(drafting, **options, dtype="float64").compare(*calls)
            found = [
                EQUAL_DOUBLE if one == DIFFERS and other in (EQUAL, EQUAL_FALLING) else one
                for one, other in zip(found, exact, strict=True)
            ]
        outcomes += found
    return outcomes


def figures(outcomes: Counter[str], seeds: range) -> str:
    return (
        f"{outcomes.total():,} calls of {len(seeds):,} s2t models, beams of 1 to 10: "
        f"{outcomes[DIFFERS]} mismatches; {outcomes[EQUAL_FALLING]} match only after clamping "
        f"ESPnet's CTC scores, {outcomes[EQUAL_DOUBLE]} only in float64; ESPnet's CTC "
        f"scores fail in {outcomes[REFUSED]}"
    )


main = harness.make_random_check(
    "random s2t searches", __file__, __doc__, 3000, cases_of_a_model, figures
)


if __name__ == "__main__":
    main()
