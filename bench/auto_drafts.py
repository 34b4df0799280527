"""Compare drafts that decide by themselves (lookahead: auto) with always and never drafting.

    python bench/auto_drafts.py --whisper openai/whisper-base --speech 'test-clean/**/*.flac' \
        --output bench/results/MACHINE/auto_drafts_base.md

Each row is one precision, beam size and batch size. The three ways decode the same utterances in
turns, in one process; times are medians of --rounds rounds of the search's seconds, without the
encoder. What auto measured is kept in a temporary cache: "first job" is its first round, in which
it knows nothing about the machine. Always: the heads' recommended drafts, in beam search of two
steps.
"""

import argparse
import glob
import json
import os
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from figures import MILLI
from machine import describe_machine
from text_drafts import read

from espnet_medusa import Speech2Text
from espnet_medusa.data.command_line import positive, run_main
from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.files.cache_folder import VARIABLE, cache_folder
from espnet_medusa.recipes.report.markdown import markdown_table

AUTO, ALWAYS, NEVER = "auto", "always", "never"
BEAM_DEPTH = 2
COLUMNS = (
    "precision", "beam", "batch", "never [ms]", "always [ms]", "auto [ms]", "auto / better",
    "auto, first job [ms]", "depths of auto", "calls", "same text",
)  # fmt: skip


class Run(NamedTuple):
    seconds: float
    texts: list[list[int]]  # tokens
    calls: int  # decoder calls of all utterances


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whisper", required=True, help="model with heads")
    parser.add_argument("--speech", required=True, help="pattern of audio files")
    parser.add_argument("--count", type=positive, default=64, help="files, evenly chosen")
    parser.add_argument("--precisions", nargs="+", default=["int8", "float32"])
    parser.add_argument("--beams", nargs="+", type=positive, default=[1, 5])
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--output", type=Path, required=True, help="Markdown file of the table")
    return parser


def open_ways(whisper: str, precision: str, beam: int) -> dict[str, Speech2Text]:
    options = {"decoder_precision": precision, "beam_size": beam, "language": "en"}
    options["search"] = "greedy" if beam == 1 else "beam"
    always = {"lookahead": "fixed"} if beam == 1 else {"draft_depth": BEAM_DEPTH}
    ways = {AUTO: {}, ALWAYS: always, NEVER: {"draft_depth": 0}}
    return {
        name: Speech2Text.from_pretrained(whisper, **options, **way) for name, way in ways.items()
    }


def encode(opened: Speech2Text, speech: Sequence, size: int) -> list[tuple]:
    """Return the arguments of the search for each batch."""
    model, batches = opened.model, []
    for start in range(0, len(speech), size):
        some = speech[start : start + size]
        encoder_out, frames = model.encode(model.batch(some))
        prompts = model.make_prompts(encoder_out, frames, [None] * len(some))
        batches.append((encoder_out, frames, prompts, model.limits))
    return batches


def run(opened: Speech2Text, batches: Sequence[tuple]) -> Run:
    started = time.perf_counter()
    states = [state for batch in batches for state in opened.model.search(*batch)]
    seconds = time.perf_counter() - started
    calls = sum(state.statistics.decoder_calls for state in states)
    return Run(seconds, [state.n_best[0].tokens for state in states], calls)


def measure(ways: dict[str, Speech2Text], batches: Sequence[tuple], rounds: int) -> dict[str, str]:
    """Return the figures of a row by column."""
    runs = {name: [] for name in ways}
    for number in range(rounds + 1):  # the first round warms up; it is the first job of auto
        first = number % len(ways)
        for name in [*ways][first:] + [*ways][:first]:
            runs[name].append(run(ways[name], batches))
    count = len(runs[AUTO][0].texts)
    ms = {name: [MILLI * one.seconds / count for one in some] for name, some in runs.items()}
    usual = {name: median(some[1:]) for name, some in ms.items()}
    chosen = ways[AUTO].model.search.planner.shape.lookahead.chosen
    same = sum(map(list.__eq__, runs[AUTO][-1].texts, runs[NEVER][-1].texts))
    calls = (f"{runs[name][-1].calls / count:.1f}" for name in (NEVER, ALWAYS, AUTO))
    return {
        **{f"{name} [ms]": f"{usual[name]:.1f}" for name in (NEVER, ALWAYS, AUTO)},
        "auto / better": f"{usual[AUTO] / min(usual[ALWAYS], usual[NEVER]):.2f}",
        "auto, first job [ms]": f"{ms[AUTO][0]:.1f}",
        "depths of auto": " ".join(f"{1 << size}:{chosen[size]}" for size in sorted(chosen)),
        "calls": " / ".join(calls),
        "same text": f"{same}/{count}",
    }


@torch.no_grad()
def work(args: argparse.Namespace) -> int:
    torch.set_num_threads(args.threads)
    kernels, rows = cache_folder() / "kernels", []
    paths = sorted(glob.glob(args.speech, recursive=True))
    paths = paths[:: max(len(paths) // args.count, 1)][: args.count]
    about = describe_machine("cpu", args.threads)
    command = f"python bench/auto_drafts.py --whisper {args.whisper} --speech '{args.speech}' "
    command += f"--count {args.count} --rounds {args.rounds} --output {args.output}"
    notes = f"    {command}\n\n{json.dumps(about)}\n\nMilliseconds per utterance of the search."
    for precision, beam, size in product(args.precisions, args.beams, args.batches):
        with tempfile.TemporaryDirectory() as folder:
            os.environ[VARIABLE] = share_kernels(kernels, Path(folder))
            ways = open_ways(args.whisper, precision, beam)
            rate_hz, most_s = ways[AUTO].sample_rate_hz, int(ways[AUTO].window_s)
            speech = [read(path, rate_hz)[: most_s * rate_hz] for path in paths]
            found = measure(ways, encode(ways[AUTO], speech, size), args.rounds)
        found |= {"precision": precision, "beam": str(beam), "batch": str(size)}
        rows.append([found[name] for name in COLUMNS])
        print(" | ".join(rows[-1]), flush=True)
        table = markdown_table(COLUMNS, rows)
        write_atomically(args.output, f"# auto, always, never\n\n{notes}\n\n{table}")
    return 0


def share_kernels(kernels: Path, folder: Path) -> str:
    """Link compiled kernels into a new cache; return its name."""
    own = folder / kernels.parent.name / kernels.name
    own.parent.mkdir()
    own.symlink_to(kernels)
    return str(folder)


def main(cmd: Sequence[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    run_main("auto_drafts.py", lambda: work(args))


if __name__ == "__main__":
    main()
