"""Decode hours of audio in one process; check memory, open files and progress.

python tests/endurance/hours_of_audio.py --model exp/base --data_dir data/test_clean_chapters \\
    --hours 24 --table tests/endurance/checks.md

Recordings of a data directory are joined and repeated, in recordings of an hour. From the second
tenth of the audio on, the peaks of each tenth are compared: memory in use as glibc counts it, and
resident memory, which varies by some dozens of MB because glibc keeps freed parts. After each
window, the total time is estimated: processor time so far over the share that is done. Elapsed
time would not do, because it depends on other programs. Exit status 1: memory grew by more than
2 %, files stayed open, or an estimate is off by more than 10 %.
"""

import argparse
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import harness
import numpy as np
import psutil
import torch

from espnet_medusa import Speech2Text
from espnet_medusa.data.audio.reader import read_audio
from espnet_medusa.data.kaldi.table import read_table
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import LongRecording
from espnet_medusa.recipes.report.markdown import markdown_table

SETTLED = 0.1  # share of the audio before measurements count
MOST_GROWTH, MOST_OFF = 0.02, 0.10
HOUR_S, RATE_HZ, MEGABYTE = 3600.0, 16000, 1e6
Decode = Callable[[Speech2Text, Path, float], Iterator["Step"]]


@dataclass(frozen=True)
class Step:
    done: float  # share of the audio
    seconds: float  # processor time since the beginning
    memory_bytes: int  # in use
    resident_bytes: int = 0  # with libraries and what the allocator keeps
    open_files: int = 0  # file descriptors


class AllocatorState(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in names.split())


def memory_in_use() -> int:
    """Return the bytes that the process has allocated and not freed."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = AllocatorState
    state = mallinfo2()
    return state.uordblks + state.hblkhd


def join_audio(data_dir: Path, path: Path) -> None:
    """Write the samples of wav.scp, one recording after the other, as float32.

    Audio readers need more memory for longer recordings; this file needs the same every hour.
    """
    with path.open("wb") as stream:
        for entry in read_table(data_dir / "wav.scp").values():
            read_audio(entry)[0].astype(np.float32).tofile(stream)


def recordings(path: Path, hours: float) -> Iterator[LongRecording]:
    """Yield recordings of an hour and the rest, read as they are needed."""
    total, length = round(HOUR_S * hours * RATE_HZ), round(HOUR_S * RATE_HZ)
    with path.open("rb") as stream:
        for number, start in enumerate(range(0, total, length)):
            samples = np.empty(min(length, total - start), np.float32)
            missing = samples.view(np.uint8)
            while len(missing := missing[stream.readinto(missing) :]):
                stream.seek(0)
            yield LongRecording(number, samples)


class Meter:
    """Measures this process, from now on."""

    def __init__(self):
        self.process, self.started = psutil.Process(), time.process_time()

    def step(self, done: float) -> Step:
        memory = memory_in_use(), self.process.memory_info().rss
        return Step(done, time.process_time() - self.started, *memory, self.process.num_fds())


def decode_windows(speech2text: Speech2Text, audio: Path, hours: float) -> Iterator[Step]:
    options = LongFormOptions(temperature_increment_on_fallback=None)
    speech2text.release_weights(options)
    meter = Meter()
    for step in speech2text.long_form(options)(recordings(audio, hours)):
        if step.recording.error is not None:
            raise step.recording.error
        done = (step.recording.key * HOUR_S + step.recording.done_s) / (hours * HOUR_S)
        yield meter.step(done)


def peaks(steps: Sequence[Step], name: str) -> list[float]:
    """Return a field's peak in each tenth of the audio, in MB; memory falls between recordings."""
    tenths: dict[int, int] = {}
    for step in steps:
        tenth = min(int(10 * step.done), 9)
        tenths[tenth] = max(tenths.get(tenth, 0), getattr(step, name))
    return [peak / MEGABYTE for peak in tenths.values()]


def growth(memory: Sequence[float]) -> float:
    """Return the largest ratio of a number to the smallest one before it, less 1."""
    return max(most / min(memory[: place + 1]) - 1 for place, most in enumerate(memory))


def furthest_off(steps: Sequence[Step]) -> float:
    """Return the largest relative error of the estimated total time."""
    return max(abs(step.seconds / step.done / steps[-1].seconds - 1) for step in steps)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="an experiment")
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp of recordings")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--decoder_precision", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="page to write (.md)")


def check(
    args: argparse.Namespace, folder: Path, decode: Decode = decode_windows
) -> tuple[str, str]:
    torch.set_num_threads(args.threads)
    options = {"search": "greedy", "ctc_weight": 0.0, "decoder_precision": args.decoder_precision}
    weights = find_weights(args.model, "model")
    speech2text = Speech2Text(args.model / "config.yaml", weights, **options)
    join_audio(args.data_dir, folder / "audio.float32")
    steps = [*decode(speech2text, folder / "audio.float32", args.hours)]
    settled = [step for step in steps if step.done >= SETTLED]
    memory, resident = (peaks(settled, name) for name in ("memory_bytes", "resident_bytes"))
    files = [step.open_files for step in settled]
    rows = [
        ["audio [h]", f"{args.hours:g}"],
        ["processor time [s]", f"{steps[-1].seconds:.0f}"],
        ["windows or updates", str(len(steps))],
        ["memory in use [MB], tenths 2 to 10", " ".join(f"{peak:.0f}" for peak in memory)],
        ["it grew by [%]", f"{100 * growth(memory):.1f}"],
        ["resident [MB]", " ".join(f"{peak:.0f}" for peak in resident)],
        ["that grew by [%]", f"{100 * growth(resident):.1f}"],
        ["open files, least and most", f"{min(files)}, {max(files)}"],
        ["progress off by [%] at most", f"{100 * furthest_off(settled):.1f}"],
    ]
    if args.output is not None:
        page = markdown_table(["", ""], rows, text_columns=1)
        args.output.write_text(f"# Hours of audio in one process\n\n{page}", encoding="utf-8")
    wrong = {
        "memory": max(growth(memory), growth(resident)) > MOST_GROWTH,
        "open files": max(files) > files[0],
        "progress": furthest_off(settled) > MOST_OFF,
    }
    names = ", ".join(name for name, is_wrong in wrong.items() if is_wrong)
    return "; ".join(f"{name}: {figure}" for name, figure in rows), names and f"no: {names}"


main = harness.make_check("hours of audio", __file__, __doc__, add_options, check)


if __name__ == "__main__":
    main()
