"""Hours of audio in one process: whether memory and open files stay flat, and progress was true.

python tests/endurance/hours_of_audio.py --model exp/base --data_dir data/test_clean_chapters \\
    --hours 24 --table tests/endurance/checks.md

Recordings of a data directory, again and again, are joined to recordings of an hour, until these
last as long as --hours. Of each tenth of the audio but the first the most memory counts: what is in
use, as glibc counts, and what is resident, where glibc keeps free parts for later, by chance some
dozens of MB more or fewer. So does the time that progress promises from there on: seconds so far
over the share that is done, against what it took. Exit status 1: either of the two grew by more
than --most_growth, files stayed open, or a promise was off by more than 10 % (--most_off).
"""

import argparse
import ctypes
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from harness.checks_table import CheckRow, finish_check

from espnet_medusa import Speech2Text
from espnet_medusa.audio.reader import read_audio
from espnet_medusa.bin.command_line import make_main
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.kaldi.table import read_table
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import LongRecording
from espnet_medusa.report.markdown import markdown_table

SETTLED = 0.1  # share of the audio behind which measurements count
HOUR_S, RATE_HZ, MEGABYTE = 3600.0, 16000, 1e6


@dataclass(frozen=True)
class Step:
    """What was seen behind a window."""

    done: float  # share of the audio
    seconds: float  # since the beginning
    memory_bytes: int  # in use
    resident_bytes: int = 0  # and what the allocator keeps, and libraries
    open_files: int = 0  # file descriptors


class AllocatorState(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")
        + ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


def memory_in_use() -> int:
    """Bytes that the process has asked for and not given back."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = AllocatorState
    state = ask()
    return state.uordblks + state.hblkhd


def join_audio(data_dir: Path, path: Path) -> None:
    """Write the samples of wav.scp, one recording behind the other, as float32.

    From a file every hour is read the same way: what readers hold of recordings of different
    lengths would be taken for what the search holds.
    """
    with path.open("wb") as stream:
        for entry in read_table(data_dir / "wav.scp").values():
            read_audio(entry)[0].astype(np.float32).tofile(stream)


def recordings(path: Path, hours: float) -> Iterator[LongRecording]:
    """Recordings of an hour, the last one of what is left, read when they are asked for."""
    left, number = round(HOUR_S * hours * RATE_HZ), 0
    with path.open("rb") as stream:
        while left:
            length = min(left, round(HOUR_S * RATE_HZ))
            samples, filled = np.empty(length, np.float32), 0
            while filled < length:
                part = samples[filled:].view(np.uint8)
                read = stream.readinto(part)
                filled += read // samples.itemsize
                if read < len(part):
                    stream.seek(0)
            yield LongRecording(number, samples)
            number, left = number + 1, left - length


def run(
    speech2text: Speech2Text, audio: Path, hours: float, options: LongFormOptions
) -> Iterator[Step]:
    """Steps through the audio."""
    process, started = psutil.Process(), time.monotonic()
    for step in speech2text.long_form(options)(recordings(audio, hours)):
        if step.recording.error is not None:
            raise step.recording.error
        done_s = step.recording.key * HOUR_S + step.recording.done_s
        done, seconds = done_s / (hours * HOUR_S), time.monotonic() - started
        resident = process.memory_info().rss
        yield Step(done, seconds, memory_in_use(), resident, process.num_fds())


def peaks(steps: Sequence[Step], of: Callable[[Step], int]) -> list[float]:
    """The most memory in each tenth of the audio, in MB: between two recordings it is less."""
    tenths: dict[int, int] = {}
    for step in steps:
        tenth = min(int(10 * step.done), 9)
        tenths[tenth] = max(tenths.get(tenth, 0), of(step))
    return [peak / MEGABYTE for peak in tenths.values()]


def growth(memory: Sequence[float]) -> float:
    """The largest number over the smallest before it, less 1."""
    least, most = memory[0], 0.0
    for number in memory:
        least = min(least, number)
        most = max(most, number / least - 1)
    return most


def furthest_off(steps: Sequence[Step]) -> float:
    """Largest relative error of the whole time that progress promised."""
    took = steps[-1].seconds
    return max(abs(step.seconds / step.done / took - 1) for step in steps)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's options."""
    parser.add_argument("--model", type=Path, required=True, help="an experiment")
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp of recordings")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--most_growth", type=float, default=0.02, help="of memory")
    parser.add_argument("--most_off", type=float, default=0.10, help="of promises")
    parser.add_argument("--decoder_precision", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="page to write (.md)")
    parser.add_argument("--table", type=Path, help="gets a row (.md)")


def work(args: argparse.Namespace) -> int:
    """Measure and write; the exit status."""
    torch.set_num_threads(args.threads)
    speech2text = Speech2Text(
        args.model / "config.yaml",
        find_weights(args.model, "model"),
        search="greedy",
        ctc_weight=0.0,
        decoder_precision=args.decoder_precision,
    )
    speech2text.release_weights()
    options = LongFormOptions(temperature_increment_on_fallback=None)
    with tempfile.TemporaryDirectory() as folder:
        audio = Path(folder, "audio.float32")
        join_audio(args.data_dir, audio)
        steps = [*run(speech2text, audio, args.hours, options)]
    settled = [step for step in steps if step.done >= SETTLED]
    memory = peaks(settled, lambda step: step.memory_bytes)
    resident = peaks(settled, lambda step: step.resident_bytes)
    grown, more_resident, off = growth(memory), growth(resident), furthest_off(settled)
    files = [step.open_files for step in settled]
    rows = [
        ["audio [h]", f"{args.hours:g}"],
        ["took [s]", f"{steps[-1].seconds:.0f}"],
        ["windows", str(len(steps))],
        ["memory in use [MB], most in each tenth", " ".join(f"{peak:.0f}" for peak in memory)],
        ["it grew by [%]", f"{100 * grown:.1f}"],
        ["resident [MB]", " ".join(f"{peak:.0f}" for peak in resident)],
        ["that grew by [%]", f"{100 * more_resident:.1f}"],
        ["open files, least and most", f"{min(files)}, {max(files)}"],
        ["progress off by [%] at most", f"{100 * off:.1f}"],
    ]
    page = markdown_table(["", ""], rows, text_columns=1)
    if args.output is not None:
        title = "# Hours of audio in one process\n\n"
        args.output.write_text(title + page, encoding="utf-8")
    wrong = {
        "memory": max(grown, more_resident) > args.most_growth,
        "open files": max(files) > files[0],
        "progress": off > args.most_off,
    }
    named = ", ".join(name for name, is_wrong in wrong.items() if is_wrong)
    figures = "; ".join(f"{name}: {figure}" for name, figure in rows)
    command = f"hours_of_audio.py --hours {args.hours:g} --threads {args.threads}"
    row = CheckRow("hours of audio", figures, f"no: {named}" if named else "yes", command)
    return finish_check(row, args.table)


main = make_main("hours_of_audio", __doc__, add_options, work)


if __name__ == "__main__":
    main()
