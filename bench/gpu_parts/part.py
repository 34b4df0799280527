"""The file of rows that a part of ``gpu.py`` writes.

Each row is written when it is measured, so an interrupted run continues.
"""

import gc
import json
import signal
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from contestants.base import FASTER_WHISPER
from machine import code_version, describe_machine

from espnet_medusa.data.errors import one_line

OURS, NO_GRAPHS = "ours", "ours, kernel by kernel"
TRANSFORMERS, COMPILED = "transformers", "transformers compiled"
ASSISTED, CTRANSLATE2 = "transformers assisted", "CTranslate2"
# Contestants of ``shape_calls.py`` and of ``audio_to_text.py``.
CALLERS = (OURS, TRANSFORMERS, COMPILED, CTRANSLATE2, NO_GRAPHS)
PROGRAMS = (OURS, TRANSFORMERS, COMPILED, ASSISTED, CTRANSLATE2, FASTER_WHISPER)
NO_TIME, NO_MEMORY = "no time was left", "out of device memory"
GRACE_SECONDS = 20.0  # to finish a row after the time limit
FAILED = 3  # exit status
Row = dict[str, Any]


class OutOfTime(Exception):
    """The time limit ended a row."""


@dataclass
class PartResults:
    """The rows of a part."""

    about: dict[str, Any]  # options, machine and code; if they differ, rows are measured again
    rows: list[Row] = field(default_factory=list)  # figures
    left_out: dict[str, str] = field(default_factory=dict)  # by row, why it is missing
    # By row, its error in one line; the log has the traceback.
    failed: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> "PartResults | None":
        """Read a file; None: it does not exist."""
        return PartResults(**json.loads(path.read_text("utf-8"))) if path.exists() else None

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)


@dataclass
class Part:
    """A running part."""

    path: Path  # the file
    results: PartResults  # its content
    until: float  # time on ``time.monotonic`` after which no row begins

    @staticmethod
    def open(path: Path, about: dict[str, Any], seconds: float) -> "Part":
        """Continue a file with the same ``about``, or begin one; ``seconds`` is the time limit."""
        about = json.loads(json.dumps(about, default=str))
        old = PartResults.read(path)
        rows = old.rows if old is not None and old.about == about else []
        part = Part(path, PartResults(about, rows), time.monotonic() + seconds)
        part.results.write(path)
        return part

    @property
    def status(self) -> int:
        """The exit status."""
        return FAILED if self.results.failed else 0

    def find(self, key: Row) -> Row | None:
        """Return the row with these values."""
        return next((row for row in self.results.rows if key.items() <= row.items()), None)

    def measure(self, key: Row, work: Callable[[], Row], peer: bool = False) -> None:
        """Measure a row unless it exists, and record why it fails.

        Args:
            peer: Another program: if it does not run, it is left out, and the part has not failed.
        """
        if self.find(key) is not None:
            return
        name = ", ".join(str(value) for value in key.values() if value != "")
        if time.monotonic() > self.until:
            self.results.left_out[name] = NO_TIME
        else:
            signal.signal(signal.SIGALRM, _stop_row)
            signal.setitimer(signal.ITIMER_REAL, self.until + GRACE_SECONDS - time.monotonic())
            try:
                self.results.rows.append(key | work())
            except OutOfTime:
                self.results.left_out[name] = NO_TIME
            except torch.OutOfMemoryError:
                self.results.left_out[name] = NO_MEMORY
            except Exception as error:  # other rows are still measured
                print(f"{name}:", file=sys.stderr)
                traceback.print_exc()
                (self.results.left_out if peer else self.results.failed)[name] = one_line(error)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                free_memory()
        self.results.write(self.path)


def _stop_row(*_: object) -> None:
    raise OutOfTime


def run(work: Callable[[Part, Namespace], None], named: Sequence[str], options: str) -> int:
    """Run a part and return the exit status.

    Args:
        work: Measures all rows.
        named: Names of the options on which all rows depend.
        options: Options of ``gpu.py`` and of the part, in JSON.
    """
    args = Namespace(**json.loads(options))
    torch.set_num_threads(args.threads)
    about = {name: getattr(args, name) for name in named}
    about |= {"machine": describe_machine(args.device, args.threads), "code": code_version()}
    part = Part.open(Path(args.output), about, args.seconds)
    work(part, args)
    return part.status


def free_memory() -> None:
    """Free unused memory of the GPU before the next row."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def forget_peak(device: str) -> None:
    """Free what earlier rows left, and reset the peak of the GPU's memory."""
    if device == "cuda":
        free_memory()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: str) -> int | None:
    """Return the peak of tensor bytes on the GPU since ``forget_peak``; None: on a CPU."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else None
