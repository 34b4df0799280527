"""An hour of audio in one process: whether memory stays flat, and progress was true all along.

python tests/endurance/hour_of_audio.py --model exp/base --data_dir data/test_clean_chapters \\
    --output hour.md

Recordings of a data directory are joined until they last as long as --hours. Memory is compared
from a tenth of the audio on; so is the time that progress promises: seconds so far over the share
that is done, against what it took. Exit status 1: memory grew by more than 5 %, or a promise was
off by more than 10 %.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from espnet_medusa import Speech2Text
from espnet_medusa.audio.reader import read_audio
from espnet_medusa.bin.command_line import run_main
from espnet_medusa.errors import InputError
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.kaldi.table import read_table
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import LongRecording
from espnet_medusa.report.tables.markdown import markdown_table

MOST_GROWTH, MOST_OFF = 0.05, 0.10
SETTLED = 0.1  # share of the audio behind which measurements count
HOUR_S, MEGABYTE = 3600.0, 1e6


@dataclass(frozen=True)
class Step:
    """What was seen behind a window.

    Attributes:
        done: Share of the audio.
        seconds: Since the beginning.
        memory_bytes: Resident.
    """

    done: float
    seconds: float
    memory_bytes: int


def join(data_dir: Path, hours: float) -> np.ndarray:
    """Samples (samples,) of so many hours.

    Raises:
        InputError: The data directory has less.
    """
    parts, seconds = [], 0.0
    for entry in read_table(data_dir / "wav.scp").values():
        samples, rate_hz = read_audio(entry)
        parts.append(samples)
        seconds += len(samples) / rate_hz
        if seconds >= HOUR_S * hours:
            return np.concatenate(parts)[: round(HOUR_S * hours * rate_hz)]
    raise InputError(f"{data_dir}: {seconds / HOUR_S:.2f} h; allowed: --hours or more")


def run(speech2text: Speech2Text, samples: np.ndarray, options: LongFormOptions) -> Iterator[Step]:
    """Steps through the recording."""
    process, started = psutil.Process(), time.monotonic()
    for step in speech2text.long_form(options)([LongRecording("audio", samples)]):
        if step.recording.error is not None:
            raise step.recording.error
        done = step.recording.done_s / step.recording.duration_s
        yield Step(done, time.monotonic() - started, process.memory_info().rss)


def growth(steps: Sequence[Step]) -> float:
    """Largest memory over the smallest before it, less 1."""
    least, most = steps[0].memory_bytes, 0.0
    for step in steps:
        least = min(least, step.memory_bytes)
        most = max(most, step.memory_bytes / least - 1)
    return most


def furthest_off(steps: Sequence[Step]) -> float:
    """Largest relative error of the whole time that progress promised."""
    took = steps[-1].seconds
    return max(abs(step.seconds / step.done / took - 1) for step in steps)


def get_parser() -> argparse.ArgumentParser:
    """The script's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="an experiment")
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp of recordings")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--decoder_precision", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True, help="table to write (.md)")
    return parser


def work(args: argparse.Namespace) -> int:
    """Measure and write; the exit status."""
    torch.set_num_threads(args.threads)
    samples = join(args.data_dir, args.hours)
    speech2text = Speech2Text(
        args.model / "config.yaml",
        find_weights(args.model, "model"),
        search="greedy",
        ctc_weight=0.0,
        decoder_precision=args.decoder_precision,
    )
    speech2text.release_weights()
    steps = [*run(speech2text, samples, LongFormOptions(temperature_increment_on_fallback=None))]
    settled = [step for step in steps if step.done >= SETTLED]
    grown, off = growth(settled), furthest_off(settled)
    memory = [step.memory_bytes / MEGABYTE for step in settled]
    rows = [
        ["audio [h]", f"{args.hours:g}"],
        ["took [s]", f"{steps[-1].seconds:.0f}"],
        ["windows", str(len(steps))],
        ["memory [MB], least and most", f"{min(memory):.0f}, {max(memory):.0f}"],
        ["memory grew by [%]", f"{100 * grown:.1f}"],
        ["progress off by [%] at most", f"{100 * off:.1f}"],
    ]
    table = markdown_table(["", ""], rows, text_columns=1)
    args.output.write_text(f"# An hour of audio in one process\n\n{table}", encoding="utf-8")
    print(table)
    return int(grown > MOST_GROWTH or off > MOST_OFF)


def main(cmd: Sequence[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("hour_of_audio", lambda: work(args))


if __name__ == "__main__":
    main()
