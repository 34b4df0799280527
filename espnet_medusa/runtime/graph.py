"""Computations on a GPU as CUDA graphs, captured once and replayed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

WARM_UP_CALLS = 2


class GraphMemory:
    """The memory of a runtime's graphs.

    They share it, because the outputs of one are read before another one runs.
    """

    def __init__(self):
        self.users: weakref.WeakSet[Replayed] = weakref.WeakSet()

    def pool(self) -> tuple[int, int] | None:
        """Return torch's handle, or None without a graph: torch rejects that of freed graphs."""
        return next((one.graph.pool() for one in self.users), None)


class Replayed:
    """A computation whose inputs have fixed addresses; its first run captures a CUDA graph.

    Without CUDA each run computes anew; tests use this on machines without a GPU.
    """

    def __init__(self, memory: GraphMemory, device: torch.device):
        self.memory, self.device = memory, device
        self.graph: torch.cuda.CUDAGraph | None = None
        self.outputs: Any = None  # of the last run

    def run(self, compute: Callable[[], Any]) -> Any:
        """Return the outputs, which the next run overwrites; ``compute`` is the same each time."""
        if self.graph is not None:
            self.graph.replay()
        elif self.device.type == "cuda":
            self._capture(compute)
        else:
            self.outputs = compute()
        return self.outputs

    def _capture(self, compute: Callable[[], Any]) -> None:
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                compute()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.memory.pool()):
            self.outputs = compute()
        self.graph = graph  # only after a successful capture
        self.memory.users.add(self)
        graph.replay()
