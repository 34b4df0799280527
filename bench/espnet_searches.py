"""Compare ESPnet 202611's beam search with ours on one experiment: n-best lists and seconds.

python bench/espnet_searches.py --exp_dir egs/mini_synth/demo/exp/asr_base \\
    --heads_dir egs/mini_synth/demo/exp/asr_recurrent --data_dir egs/mini_synth/demo/dump/raw/test
python bench/espnet_searches.py --exp_dir exp/s2t --s2t --tokens 30 --data_dir dump/raw/test

ESPnet: its own class and search, in batches. ours: the same options without drafts, with drafts of
the CTC branch, and of the heads of HEADS_DIR. All decode in float32, take turns, and get batches of
utterances of similar length. "ms": processor time per utterance, encoder included, the median of
the rounds. "times as fast": than ESPnet one by one with the same beam. "other lists": utterances
whose n-best tokens differ from those of ESPnet one by one. --tokens fixes the length of each text,
for random weights.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from espnet2.bin.asr_inference import Speech2Text as ESPnetASR
from espnet2.bin.s2t_inference import Speech2Text as ESPnetS2T
from inputs import enter_recipe, read_utterances
from machine import describe_machine, machine_name
from tqdm import tqdm

from espnet_medusa.data.command_line import positive, run_main
from espnet_medusa.inference.experiment import find_experiment
from espnet_medusa.inference.s2t import S2TSpeech2Text
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.recipes.report.markdown import markdown_table

RESULTS = Path(__file__).resolve().parent / "results"
ESPNET, PLAIN, CTC, HEADS = "ESPnet", "ours", "ours, CTC drafts", "ours, heads"
DRAFTS = {
    PLAIN: {"draft_depth": 0},
    CTC: {"drafter": "ctc", "lookahead": "fixed"},
    HEADS: {"drafter": "heads", "lookahead": "fixed"},
}

Decode = Callable[[Sequence[np.ndarray]], list[list[list[int]]]]  # samples to n-best tokens


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--exp_dir", type=Path, required=True, help="experiment of the asr task")
    add("--s2t", action="store_true", help="--exp_dir is of the s2t task")
    add("--heads_dir", type=Path, help="the same model with heads")
    add("--data_dir", type=Path, required=True, help="folder with wav.scp and text")
    add("--num_utterances", type=positive, default=40, help="spread over --data_dir")
    add("--beam_sizes", nargs="+", type=positive, default=[5, 10])
    add("--batch_sizes", nargs="+", type=positive, default=[1, 4, 8])
    add("--ctc_weight", type=float, default=0.3)
    add("--tokens", type=positive, help="of each text; default: as the search decides")
    add("--rounds", type=positive, default=3)
    add("--output", type=Path, help="name of the .md and .json; default: in bench/results/MACHINE")
    return parser


def open_ways(args: argparse.Namespace, beam_size: int) -> dict[str, Decode]:
    """Open each program's decoder of a batch."""
    kind = "s2t" if args.s2t else "asr"
    theirs, ours = (ESPnetS2T, S2TSpeech2Text) if args.s2t else (ESPnetASR, Speech2Text)
    options = {"beam_size": beam_size, "ctc_weight": args.ctc_weight, "nbest": beam_size}
    if args.tokens:
        options |= {"maxlenratio": -args.tokens, "minlenratio": -args.tokens}

    def files(folder: Path) -> dict[str, Any]:
        names = f"{kind}_train_config", f"{kind}_model_file"
        return dict(zip(names, find_experiment(folder, None, "exp_dir"), strict=True))

    ways = {ESPNET: theirs(**files(args.exp_dir), **options).batch_decode}
    for name in [PLAIN] if args.s2t else [PLAIN, CTC]:
        ways[name] = ours(**files(args.exp_dir), **options, **DRAFTS[name]).decode
    if args.heads_dir:
        ways[HEADS] = ours(**files(args.heads_dir), **options, **DRAFTS[HEADS]).decode
    return {name: as_tokens(decode, name != ESPNET) for name, decode in ways.items()}


def as_tokens(decode: Callable, is_ours: bool) -> Decode:
    def run(speeches: Sequence[np.ndarray]) -> list[list[list[int]]]:
        lists = decode([*speeches])
        lists = [decoding.results for decoding in lists] if is_ours else lists
        return [[[*map(int, entry[2])] for entry in nbest] for nbest in lists]

    return run


@torch.no_grad()
def compare(args: argparse.Namespace, speeches: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Decode all utterances with all programs, beams and batch sizes; return a row of each."""
    rows = []
    for beam_size in args.beam_sizes:
        ways = open_ways(args, beam_size)
        cases = [*product(ways, args.batch_sizes)]
        seconds, found = {case: [] for case in cases}, {}
        for _, (name, size) in tqdm([*product(range(args.rounds), cases)], f"beam {beam_size}"):
            started, lists = time.process_time(), []
            for first in range(0, len(speeches), size):
                lists += ways[name](speeches[first : first + size])
            seconds[name, size].append((time.process_time() - started) / len(speeches))
            found[name, size] = lists
        expected = found[ESPNET, args.batch_sizes[0]]
        for name, size in cases:
            pairs = zip(expected, found[name, size], strict=True)
            other = sum(theirs != ours for theirs, ours in pairs)
            row = {"beam": beam_size, "program": name, "batch": size, "other lists": other}
            rows.append(row | {"ms": 1000 * statistics.median(seconds[name, size])})
    return rows


def write_tables(rows: Sequence[dict[str, Any]], smallest: int) -> str:
    """Return a section with a table for each beam size."""
    sections = []
    for beam_size in dict.fromkeys(row["beam"] for row in rows):
        of_beam = [row for row in rows if row["beam"] == beam_size]
        alone_ms = next(
            row["ms"] for row in of_beam if (row["program"], row["batch"]) == (ESPNET, smallest)
        )
        lines = [
            [row["program"], str(row["batch"]), f"{row['ms']:.0f}", f"{alone_ms / row['ms']:.1f}",
             str(row["other lists"])]
            for row in of_beam
        ]  # fmt: skip
        titles = "program", "batch", "ms", "times as fast", "other lists"
        sections.append(f"## beam {beam_size}\n\n{markdown_table(titles, lines, text_columns=2)}")
    return "\n".join(sections)


def work(args: argparse.Namespace) -> int:
    name = f"espnet_searches_{args.exp_dir.name}"
    output = (args.output or RESULTS / machine_name("cpu") / name).absolute()
    folders = "exp_dir", "heads_dir", "data_dir"
    for folder in folders:
        if getattr(args, folder):
            setattr(args, folder, getattr(args, folder).absolute())
    enter_recipe(args.data_dir)
    utterances = read_utterances(args.data_dir, args.num_utterances)
    speeches = sorted((utterance.speech for utterance in utterances), key=len)
    rows = compare(args, [speech.astype(np.float32) for speech in speeches])
    tables = write_tables(rows, args.batch_sizes[0])
    print(tables)
    machine = describe_machine("cpu", torch.get_num_threads())
    output.parent.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine, "utterances": len(speeches), "rows": rows}
    output.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    versions = ", ".join(f"{key} {value}" for key, value in machine["versions"].items())
    seconds = sum(map(len, speeches)) / 16000
    about = f"{machine['processor']}, {machine['threads']} threads; {versions}; "
    about += f"{len(speeches)} utterances, {seconds:.0f} s; CTC {args.ctc_weight}."
    notes = "\n".join(__doc__.splitlines()[6:])
    title = f"# {args.exp_dir.name}: ESPnet's beam search and ours"
    output.with_suffix(".md").write_text(f"{title}\n\n{about}\n\n{tables}\n{notes}\n")
    return 0


def main(cmd: list[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    run_main("espnet_searches.py", lambda: work(args))


if __name__ == "__main__":
    main()
