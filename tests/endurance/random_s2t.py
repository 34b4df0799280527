"""Compare random searches of tiny s2t models (OWSM's shape) with ESPnet's own s2t_inference.

python tests/endurance/random_s2t.py --cases 3000 --table tests/endurance/checks.md

A case is one call: its previous text, language, task, timestamps, beam of 1 to 10, CTC weight and
limits are random. It is decoded alone and in a batch of three, without drafts and with CTC drafts.
Every sixth case, model and options change. If CTC finds a prefix impossible, ESPnet's score of it
may rise again later. A case that differs is therefore compared again with an ESPnet search whose
CTC scores only fall, and counts as a mismatch if it still differs. Exit status 1: there is a
mismatch.
"""

import argparse
import logging
import random
import warnings
from collections import Counter
from pathlib import Path

import harness
import torch
from beam_oracle import FallingCTC
from espnet2.bin import s2t_inference as espnet
from s2t_experiment import difference, make_s2t_experiment, nbest_of, random_inputs, random_options

from espnet_medusa.bin.command_line import positive
from espnet_medusa.inference.s2t import S2TSpeech2Text

BATCH, BATCHES = 3, 2  # cases of a model: BATCH * BATCHES
EQUAL, EQUAL_FALLING, DIFFERS = "equal", "equal if CTC scores only fall", "mismatch"
REFUSED = "ESPnet fails"


def cases_of_a_model(seed: int, folder: Path) -> list[str]:
    """Return the outcomes of BATCH * BATCHES cases."""
    rng = random.Random(seed)
    files, options = make_s2t_experiment(folder, seed).files, random_options(rng)
    theirs, falling = (espnet.Speech2Text(**files, **options) for _ in range(2))
    if "ctc" in falling.beam_search.part_scorers:
        network = falling.s2t_model
        falling.beam_search.part_scorers["ctc"] = FallingCTC(network.ctc, network.eos)
    models = [S2TSpeech2Text(**files, **options, drafter=drafter) for drafter in (None, "ctc")]
    outcomes = []
    for _ in range(BATCHES):
        speeches, conditions = random_inputs(rng, BATCH)
        calls = [*zip(speeches, conditions, strict=True)]
        results = [[model(speech, **condition) for speech, condition in calls] for model in models]
        results += [[one.results for one in model.decode(speeches, conditions)] for model in models]
        for call, found in zip(calls, zip(*results, strict=True), strict=True):
            outcomes.append(compare(found, call, theirs, falling))
    return outcomes


def compare(found, call, theirs, falling) -> str:
    """Return the outcome of one case; ``found`` has our n-best lists of one call."""
    for outcome, oracle in ((EQUAL, theirs), (EQUAL_FALLING, falling)):
        expected = nbest_of(oracle, *call)
        if expected is None:
            return REFUSED
        if all(difference(nbest, expected) is None for nbest in found):
            return outcome
    return DIFFERS


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=positive, default=3000)
    parser.add_argument("--seed", type=int, default=0, help="of the first model; others follow")


def check(args: argparse.Namespace, folder: Path) -> tuple[str, str]:
    torch.set_num_threads(1)
    outcomes, seed, disabled = Counter(), args.seed, logging.root.manager.disable
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while outcomes.total() < args.cases:
            found = Counter(cases_of_a_model(seed, folder / str(seed)))
            outcomes += found
            if found[DIFFERS]:
                print(f"seed {seed}: {found[DIFFERS]} mismatches", flush=True)
            seed += 1
            if seed % 50 == 0:
                print(f"{outcomes.total()} cases", flush=True)
    logging.disable(disabled)
    figures = (
        f"{outcomes.total():,} calls of {seed - args.seed:,} s2t models, beams of 1 to 10: "
        f"{outcomes[DIFFERS]} mismatches; {outcomes[EQUAL_FALLING]} match only if ESPnet's CTC "
        f"scores never rise again; ESPnet's CTC scores fail in {outcomes[REFUSED]}"
    )
    return figures, "no" if outcomes[DIFFERS] else ""


main = harness.make_check("random s2t searches", __file__, __doc__, add_options, check)


if __name__ == "__main__":
    main()
