"""Time a search and its parts by wrapping them."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from espnet_medusa.search.search import Search

CALLS, DRAFTING = "decoder calls", "drafting"


@dataclass(frozen=True)
class Clock:
    """Seconds on a device.

    With one CPU thread the clock counts the thread's processor time, so that other processes do
    not lengthen it. On a GPU it waits for all kernels first.
    """

    device: torch.device  # where the model runs

    @property
    def thread_time(self) -> bool:
        """Whether the clock counts processor time of one thread."""
        return self.device.type == "cpu" and torch.get_num_threads() == 1

    def now(self) -> float:
        """Return seconds since an arbitrary moment."""
        if self.thread_time:
            return time.thread_time()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


@dataclass
class Stopwatch:
    """Seconds of the parts of one search run."""

    clock: Clock
    seconds: Counter[str] = field(default_factory=Counter)  # by part, ``CALLS`` and ``DRAFTING``
    calls: int = 0  # decoder calls

    def time(self, part: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``work(*arguments)``, and add its seconds to a part."""
        started = self.clock.now()
        result = work(*arguments)
        self.seconds[part] += self.clock.now() - started
        return result


def timed(search: Search, stopwatch: Stopwatch) -> Search:
    """Return a search with the same parts, timed."""
    decoder = TimedDecoder(search.decoder, stopwatch)
    return Search(decoder, TimedPlanner(search.planner, stopwatch))


class Timed:
    """A wrapper of a part of a search; other attributes are those of the part."""

    def __init__(self, part: Any, stopwatch: Stopwatch):
        self.part = part
        self.stopwatch = stopwatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)


class TimedDecoder(Timed):
    """A ``TreeDecoder`` whose calls are timed and counted."""

    def extend(self, *arguments: Any) -> Any:
        self.stopwatch.calls += 1
        return self.stopwatch.time(CALLS, self.part.extend, *arguments)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.stopwatch.time(CALLS, self.part.logits, hidden)


class TimedPlanner(Timed):
    """A ``StepPlanner`` whose drafting is timed."""

    def begin(self, context: Any) -> "TimedPlanner":
        begun = self.stopwatch.time(DRAFTING, self.part.begin, context)
        return TimedPlanner(begun, self.stopwatch)

    def draft_prompt(self, states: Any) -> None:
        self.stopwatch.time(DRAFTING, self.part.draft_prompt, states)

    def draft(self, states: Any) -> None:
        self.stopwatch.time(DRAFTING, self.part.draft, states)
