"""Choose the rows of a comparison from the options of ``compare.py``."""

import argparse
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from contestants.base import CONTESTANTS, MEMORIES, RECORDINGS, SPEECH
from contestants.subjects import MemorySubject, SpeechSubject
from contestants.ways import BASELINE, BEAM5, BFLOAT16, DRAFTERS, DRAFTS, GREEDY, HEADS, OURS, Way

from espnet_medusa.data.errors import InputError

SEARCHES = {"greedy": GREEDY, "beam5": BEAM5}


def make_ways(
    subject: MemorySubject | SpeechSubject, args: argparse.Namespace, left_out: dict[str, str]
) -> list[Way]:
    """Return all ways (rows) in the order of tables; ``left_out`` gets reasons for missing ones.

    Raises:
        InputError: A search or drafter is unknown.
    """
    for option, known in (("searches", SEARCHES), ("drafters", DRAFTERS)):
        for name in getattr(args, option) or ():
            if name not in known:
                raise InputError(f"--{option} {name}; allowed: {', '.join(known)}")
    sizes = [1] if subject.kind == SPEECH else args.batch_sizes or [1, 8]
    drafters = [name for name in DRAFTERS if args.drafters is None or name in args.drafters]
    ways = []
    for search in [SEARCHES[name] for name in args.searches or SEARCHES]:
        for name, entry in CONTESTANTS[subject.kind].items():
            if name not in (args.contestants or [name]) or search not in entry.searches:
                continue
            if name == "transformers assisted" and subject.draft_conf is None:
                left_out[name] = "no draft model; it needs EXP_DIR/asr_draft"
                continue
            weights = [one for one in entry.weights if one in (args.weights or entry.weights)]
            if not weights and subject.kind == RECORDINGS:
                weights = entry.weights  # openai-whisper is the reference of all
            for one, size in product(weights, sizes):
                if size == 1 or search in entry.batched:
                    way = Way(name, one, search, size)
                    ways += _with_drafts(way, subject, args, drafters)
    trained = subject.kind == MEMORIES and subject.fixed_tokens is None
    if trained and OURS in (args.contestants or [OURS]):
        missing = [name for name in drafters if name not in subject.drafters]
        left_out |= {f"{OURS}, {DRAFTS[name]}": "the model has no such drafter" for name in missing}
    return ways


def _with_drafts(
    way: Way, subject: MemorySubject | SpeechSubject, args: argparse.Namespace, drafters: list[str]
) -> Iterable[Way]:
    """Return the baseline ``way``; for our own search, also its ways with drafts."""
    if way.contestant != OURS:
        return [way]
    drafters = [name for name in drafters if name in subject.drafters]
    if subject.kind == MEMORIES and way.weights == BFLOAT16 and not args.weights:
        drafters = [name for name in drafters if name == HEADS]  # keeps tables short
    return [replace(way, drafts=drafts) for drafts in (BASELINE, *drafters)]
