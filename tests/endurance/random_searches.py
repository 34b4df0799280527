"""Random searches against the oracles: plain greedy search, and ESPnet's beam search.

python tests/endurance/random_searches.py --cases 10000 --table tests/endurance/checks.md

A third of the cases are greedy. Each is a batch of one to four utterances, its tiny decoder, who
drafts, shapes of drafts, weights, limits and constraints drawn at random; beams are up to three
wider than the vocabulary. Where CTC finds a prefix impossible, ESPnet's score of it comes back: a
case that differs is asked again of ESPnet's search with CTC scores that only fall, and counts as a
mismatch where it differs still. Exit status 1: there is one.
"""

import argparse
import logging
import multiprocessing
import random
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import harness  # noqa: F401  makes tests/support importable
import torch
from beam_oracle import FallingCTC, UncachedScorer, WideBeamSearch, espnet_search, random_weights
from draft_models import DRAFT_MODELS, drafted
from harness.checks_table import CheckRow, finish_check
from search_cases import beam_shape, greedy_shape, random_nbest
from searches import assert_plain, compare, decode, our_search
from tiny import EOS, VOCAB_SIZE, random_memory, tiny_decoder

from espnet_medusa.bin.command_line import make_main, positive
from espnet_medusa.search.constraints import build_constraints
from espnet_medusa.search.options import LengthLimits, SearchOptions
from espnet_medusa.upstream.compat import CTCPrefixScorer

HEADS = [
    "linear", "block", "recurrent", "attending", "latent",
    "llama projection", "llama latent", "llama block", "llama recurrent",
]  # fmt: skip
DRAFTERS = [*HEADS, "none", *DRAFT_MODELS]
WIDEST_BEAM = VOCAB_SIZE + 3
CONSTRAINTS = [
    {},
    {},
    {},
    {"suppress_tokens": [0, 2]},
    {"begin_suppress_tokens": [1, 3, 4]},
    {"forced_prefix": [4, 4, 9, 2, 1]},
    {"exponential_decay_length_penalty": [3, 1.2]},
]
GREEDY, BEAM = "greedy", "beam"
EQUAL, EQUAL_FALLING, DIFFERS = "equal", "equal where CTC scores only fall", "mismatch"


def random_decoder(rng: random.Random, seed: int):
    """A trained module, what searches see of it, and how many heads it has."""
    kind, num_heads = rng.choice(DRAFTERS), rng.choice([1, 4, 6])
    if kind in DRAFT_MODELS:
        return *drafted(seed, kind), 8
    module = tiny_decoder(seed, kind, num_heads)
    return module, module, 0 if kind == "none" else num_heads


def greedy_case(rng: random.Random, seed: int) -> str:
    """Exact greedy search with drafts against plain greedy search."""
    module, decoder, num_heads = random_decoder(rng, seed)
    frames = [rng.randint(1, 14) for _ in range(rng.randint(1, 4))]
    memory, lengths = random_memory(seed, frames)
    most = [rng.choice([1, 2, 3, 7, 25, 50]) for _ in frames]
    least = [rng.randint(0, longest) if rng.random() < 0.3 else 0 for longest in most]
    shape = greedy_shape(rng, num_heads)
    found = decode(decoder, memory, lengths, most, min_lengths=least, shape=shape)
    try:
        assert_plain(module, memory, lengths, found, most, least)
    except AssertionError:
        return DIFFERS
    return EQUAL


def beam_case(rng: random.Random, seed: int) -> str:
    """Beam search with drafts against ESPnet's over a decoder without cache."""
    module, decoder, _ = random_decoder(rng, seed)
    beam_size, weights = rng.randint(1, WIDEST_BEAM), random_weights(rng)
    options = rng.choice(CONSTRAINTS)
    # ESPnet has no constraints: it would fill beams with what they forbid, and count its ends.
    detect_end = [] if options else [0.0, 0.0]
    limits = LengthLimits(rng.choice([*detect_end, 0.5, 0.9, -1, -6]), rng.choice([0.0, 0.2, -2]))
    # More labels than frames ESPnet's CTC scorer does not bear.
    frames = [rng.randint(7, 12) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
    memory, lengths = random_memory(seed, frames)
    constraints = build_constraints(SearchOptions(**options), VOCAB_SIZE, EOS)
    normalize = {"normalize_length": rng.random() < 0.3}
    shape, nbest = beam_shape(rng, decoder, beam_size), random_nbest(rng, beam_size)
    search = our_search(
        decoder, seed, weights, beam_size, shape, constraints, nbest=nbest, **normalize
    )
    scorer = UncachedScorer(module, constraints)
    for found, ctc_kind in ((EQUAL, CTCPrefixScorer), (EQUAL_FALLING, FallingCTC)):
        kinds = {"kind": WideBeamSearch, "ctc_kind": ctc_kind}
        oracle = espnet_search(scorer, seed, weights, beam_size, **kinds, **normalize)
        try:
            compare(search, memory, lengths, oracle, limits)
        except AssertionError:
            continue
        return found
    return DIFFERS


def run_case(seed: int) -> tuple[int, str, str]:
    """Return the seed, the search and the outcome of a case."""
    rng = random.Random(seed)
    if rng.random() < 1 / 3:
        return seed, GREEDY, greedy_case(rng, seed)
    return seed, BEAM, beam_case(rng, seed)


def prepare() -> None:
    """One thread a process, and no warnings of ESPnet's."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")


def run_cases(seeds: Sequence[int], processes: int) -> Iterator[tuple[int, str, str]]:
    """Cases as they are done, here or by several processes."""
    if processes == 1:
        disabled = logging.root.manager.disable
        with warnings.catch_warnings():
            prepare()
            yield from map(run_case, seeds)
        logging.disable(disabled)
        return
    with multiprocessing.get_context("spawn").Pool(processes, initializer=prepare) as pool:
        yield from pool.imap_unordered(run_case, seeds, chunksize=10)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's options."""
    parser.add_argument("--cases", type=positive, default=10000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; others follow")
    parser.add_argument("--processes", type=positive, default=1)
    parser.add_argument("--minutes", type=float, help="end then, however many are done")
    parser.add_argument("--table", type=Path, help="gets a row (.md)")


def work(args: argparse.Namespace) -> int:
    """Search and compare; the exit status."""
    counts, started = Counter(), time.monotonic()
    seeds = range(args.seed, args.seed + args.cases)
    with closing(run_cases(seeds, args.processes)) as cases:
        for number, (seed, search, found) in enumerate(cases, start=1):
            counts[search, found] += 1
            if found == DIFFERS:
                print(f"seed {seed}: {search}: {found}", flush=True)
            minutes = (time.monotonic() - started) / 60
            if number % 500 == 0:
                print(f"{number} cases, {minutes:.0f} minutes", flush=True)
            if args.minutes is not None and minutes > args.minutes:
                break
    wrong = sum(count for (_, found), count in counts.items() if found == DIFFERS)
    command = f"random_searches.py --cases {sum(counts.values())} --seed {args.seed}"
    row = CheckRow("random searches", report(counts, wrong), "no" if wrong else "yes", command)
    return finish_check(row, args.table)


def report(counts: Counter, wrong: int) -> str:
    """Return the result in one sentence."""
    searches = {
        name: sum(count for (kind, _), count in counts.items() if kind == name)
        for name in (GREEDY, BEAM)
    }
    return (
        f"{searches[GREEDY]:,} greedy and {searches[BEAM]:,} beam cases, beams of 1 to "
        f"{WIDEST_BEAM} over {VOCAB_SIZE} tokens: {wrong} mismatches; in "
        f"{counts[BEAM, EQUAL_FALLING]} ESPnet's score of what CTC finds impossible comes back, "
        "equal where it does not"
    )


main = make_main("random_searches", __doc__, add_options, work)


if __name__ == "__main__":
    main()
