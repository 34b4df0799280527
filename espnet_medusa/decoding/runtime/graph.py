"""Computations on a GPU as CUDA graphs, captured once and replayed."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

WARM_UP_CALLS = 2


class GraphMemory:
    """The memory of a runtime's graphs.

    They can share it, because each one's outputs are read or copied before another one runs. With
    several threads, a thread holds ``lock`` until it has done so.

    Attributes:
        stream: Stream of all captures; each stream has its own workspace of cuBLAS.
    """

    def __init__(self):
        self.lock = threading.RLock()
        self.stream: torch.cuda.Stream | None = None
        self.users: weakref.WeakSet[Replayed] = weakref.WeakSet()

    def pool(self) -> tuple[int, int] | None:
        """Return the pool's handle; None without a graph, as torch rejects that of freed graphs."""
        return next((one.graph.pool() for one in self.users), None)


class Replayed:
    """A computation whose inputs have fixed addresses; its first run captures a CUDA graph.

    Without CUDA each run computes anew; tests use this on machines without a GPU. The computation
    may change ``state``, tensors with fixed addresses.
    """

    def __init__(
        self, memory: GraphMemory, device: torch.device, state: Sequence[torch.Tensor] = ()
    ):
        self.memory, self.device, self.state = memory, device, state
        self.graph: torch.cuda.CUDAGraph | None = None
        self.outputs: Any = None  # of the last run

    def run(self, compute: Callable[[], Any]) -> Any:
        """Return the outputs; the next run overwrites them.

        On a GPU, all runs but the first replay the graph and ignore ``compute``.
        """
        if self.graph is not None:
            self.graph.replay()
        elif self.device.type == "cuda":
            self._capture(compute)
        else:
            self.outputs = compute()
        return self.outputs

    def _capture(self, compute: Callable[[], Any]) -> None:
        if self.memory.stream is None:
            self.memory.stream = torch.cuda.Stream(self.device)
        stream, graph = self.memory.stream, torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                before = [part.clone() for part in self.state]
                for _ in range(WARM_UP_CALLS):
                    compute()
                    for part, value in zip(self.state, before, strict=True):
                        part.copy_(value)
            torch.cuda.current_stream().wait_stream(stream)
            # Other threads may allocate memory during the capture.
            how = {"pool": self.memory.pool(), "capture_error_mode": "thread_local"}
            with torch.cuda.graph(graph, stream=stream, **how):
                self.outputs = compute()
        self.graph = graph  # only after a successful capture
        self.memory.users.add(self)
        graph.replay()
