"""What parts have in common: their options, and a file that gets each row when it is measured.

So rows stay when a process ends early, and the next one goes on where it was.
"""

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from machine import code_version, describe_machine

from espnet_medusa.bin.command_line import positive
from espnet_medusa.inference.batches import one_line

NO_TIME, NO_MEMORY = "no time was left", "the device's memory was not enough"
FAILED = 3  # exit status


@dataclass
class Kept:
    """What a part has found.

    Attributes:
        about: What the rows were measured with; others are not gone on with.
        rows: Figures.
        left_out: Why some are not there.
        failed: What went wrong with others, a line each; the log says where.
    """

    about: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> "Kept | None":
        """Of a file; None: there is none."""
        return Kept(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def write(self, path: Path) -> None:
        """At once and whole, whoever ends this process."""
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)


@dataclass
class Part:
    """A part at work.

    Attributes:
        path: The file.
        kept: What is in it.
        until: When no more rows are begun, on ``time.monotonic``.
    """

    path: Path
    kept: Kept
    until: float

    @staticmethod
    def open(path: Path, about: dict[str, Any], seconds: float) -> "Part":
        """Go on with a file's rows if they were measured with the same, else begin.

        Args:
            path: The file.
            about: As ``Kept``'s.
            seconds: After which no more rows are begun.
        """
        about = json.loads(json.dumps(about, default=str))
        old = Kept.read(path)
        rows = old.rows if old is not None and old.about == about else []
        part = Part(path, Kept(about, rows), time.monotonic() + seconds)
        part.kept.write(path)
        return part

    @property
    def status(self) -> int:
        """Of the process."""
        return FAILED if self.kept.failed else 0

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The row with these values."""
        return next((row for row in self.kept.rows if key.items() <= row.items()), None)

    def measure(
        self, key: dict[str, Any], work: Callable[[], dict[str, Any]], peer: bool = False
    ) -> None:
        """Add a row, unless it is there, or why there is none.

        Args:
            key: What is measured.
            work: Gives the figures.
            peer: Another program: that it does not run is said, but no failure of ours.
        """
        if self.find(key) is not None:
            return
        name = ", ".join(str(value) for value in key.values() if value != "")
        if time.monotonic() > self.until:
            self.kept.left_out[name] = NO_TIME
        else:
            try:
                self.kept.rows.append(key | work())
            except torch.OutOfMemoryError:
                self.kept.left_out[name] = NO_MEMORY
            except Exception as error:  # whatever it was, the others go on
                print(f"{name}:", file=sys.stderr)
                traceback.print_exc()
                (self.kept.left_out if peer else self.kept.failed)[name] = one_line(error)
            finally:
                free_memory()
        self.kept.write(self.path)


def part_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options of all parts."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="JSON, gone on with")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no rows later")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--threads", type=positive, default=2)
    return parser


def open_part(args: argparse.Namespace, named: Sequence[str]) -> Part:
    """The part that options ask for; ``named`` are those of them that all of its rows depend on."""
    torch.set_num_threads(args.threads)
    about = {name: getattr(args, name) for name in named}
    machine = describe_machine(args.device, args.threads)
    about |= {"machine": machine, "code": code_version()}
    return Part.open(args.output, about, args.seconds)


def free_memory() -> None:
    """Give back what nobody needs on a GPU: the next row's peak is its own."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def forget_peak(device: str) -> None:
    """Begin a new peak of the GPU's memory."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: str) -> int | None:
    """Most bytes of tensors on the GPU since then, whatever is there for long included."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else None
