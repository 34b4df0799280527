"""Time a search and its parts by wrapping them."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from espnet_medusa.decoding.search.search import Search

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


NEW_PLANNERS = "planned", "begin"  # methods that return another planner


@dataclass
class Stopwatch:
    """Seconds of the parts of one search run, and numbers of calls of their methods."""

    clock: Clock
    seconds: Counter[str] = field(default_factory=Counter)  # by part, ``CALLS`` and ``DRAFTING``
    calls: Counter[str] = field(default_factory=Counter)  # by method


def timed(search: Search, stopwatch: Stopwatch) -> Search:
    """Return a search with the same parts, timed."""
    decoder = Timed(search.decoder, stopwatch, CALLS, ("extend", "logits"))
    methods = *NEW_PLANNERS, "draft_prompt", "draft"
    return Search(decoder, Timed(search.planner, stopwatch, DRAFTING, methods))


@dataclass(frozen=True)
class Timed:
    """A part of a search whose ``methods`` are timed; other attributes are those of the part."""

    part: Any
    stopwatch: Stopwatch
    name: str  # in ``Stopwatch.seconds``
    methods: Sequence[str]

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self.part, attribute)
        return partial(self._time, attribute, value) if attribute in self.methods else value

    def _time(self, method: str, work: Callable[..., Any], *arguments: Any) -> Any:
        started = self.stopwatch.clock.now()
        result = work(*arguments)
        self.stopwatch.seconds[self.name] += self.stopwatch.clock.now() - started
        self.stopwatch.calls[method] += 1
        return replace(self, part=result) if method in NEW_PLANNERS else result
