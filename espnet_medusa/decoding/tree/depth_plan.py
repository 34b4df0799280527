"""The depths of one search's drafts, and the seconds of its calls."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class DepthPlan:
    depths: Sequence[int]  # with 1, 2, ... running utterances
    trial: int = 0  # another depth, before ``trial_calls`` calls after the first one
    trial_calls: int = 0
    # Of calls after the first one, which has the prompt: running utterances, depth of drafts,
    # seconds with drafting and the search's steps.
    calls: list[tuple[int, int, float]] = field(default_factory=list)
    begun: int = 0  # calls
    _last: tuple[int, int, float] | None = None  # of the last call: as in ``calls``, but its start

    @property
    def most(self) -> int:
        """The greatest depth."""
        return max(*self.depths, self.trial if self.trial_calls else 0)

    def depth(self, running: int, call: int) -> int:
        """Return the depth of the drafts for a call; 0 is the first one."""
        return self.trial if 1 <= call <= self.trial_calls else self.depths[running - 1]

    def begin_call(self, running: int) -> int:
        """End the last call; return the depth of the drafts for the next one."""
        self.end_call()
        depth = self.depth(running, self.begun)
        self.begun += 1
        self._last = running, depth, time.perf_counter()
        return depth

    def end_call(self) -> None:
        """Record the last call, if it is not recorded yet."""
        if self._last is not None and self.begun > 1:
            *about, started = self._last
            self.calls.append((*about, time.perf_counter() - started))
        self._last = None
