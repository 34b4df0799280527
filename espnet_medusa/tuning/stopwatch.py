"""Timing of the parts of a search, without a change to the search.

Decoder, surrogate, strategy and drafter are each replaced by one that does the same and notes
how long it took. What is between them is left over: bookkeeping, and dropping nodes.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from espnet_medusa.decoder.tree_decoder import NodeOutputs, TreeDecoder, TreeState
from espnet_medusa.draft.run_ahead import RunAhead
from espnet_medusa.draft.surrogate import Surrogate
from espnet_medusa.prefix import Prefix
from espnet_medusa.search.walk import Walk


@dataclass(frozen=True)
class Clock:
    """Seconds of what this process does.

    With one thread on a processor only the time in which it has the processor counts: other
    processes would lengthen few of the short calls and most of the long ones. On a GPU all that
    was asked of it is finished first.

    Attributes:
        device: Where the model runs.
    """

    device: torch.device

    @property
    def own_time(self) -> bool:
        """Whether the time of other processes is left out."""
        return self.device.type == "cpu" and torch.get_num_threads() == 1

    def now(self) -> float:
        """Seconds since some moment."""
        if self.own_time:
            return time.thread_time()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


@dataclass
class Iteration:
    """One decoder call and what is done around it.

    Attributes:
        drafts: Whether the decoder serves heads that draft.
        rows: Utterances in the batch.
        row_nodes: Nodes per row, on average, prompts included.
        nodes: Nodes whose logits are wanted, of all rows.
        rounds: Steps of the utterance that walked farthest.
        steps: Steps that utterances walked, all together.
        draft_steps: Steps run ahead.
        draft_rows: Prefixes that the surrogate was asked about in them.
        call_seconds: ``extend`` and ``logits``.
        walk_seconds: Taking the steps that the call allows.
        draft_seconds: Running ahead.
        other_seconds: The rest.
    """

    drafts: bool
    rows: int
    row_nodes: float
    nodes: int = 0
    rounds: int = 0
    steps: int = 0
    draft_steps: int = 0
    draft_rows: int = 0
    call_seconds: float = 0.0
    walk_seconds: float = 0.0
    draft_seconds: float = 0.0
    other_seconds: float = 0.0


@dataclass
class PhaseLog:
    """What timed parts write down during one run of a search.

    Attributes:
        clock: Tells the time.
        iterations: In order.
        setup_seconds: Before the first decoder call.
        most_nodes: Nodes of the largest draft of one utterance.
    """

    clock: Clock
    iterations: list[Iteration] = field(default_factory=list)
    setup_seconds: float = 0.0
    most_nodes: int = 0
    _mark: float = 0.0

    def begin(self) -> None:
        """The search starts."""
        self._mark = self.clock.now()

    def open(self, drafts: bool, rows: int, row_nodes: float) -> None:
        """An iteration starts, the one before has ended."""
        self.close()
        self.iterations.append(Iteration(drafts, rows, row_nodes))

    def close(self) -> None:
        """All since ``begin`` or the last ``open`` that no part has claimed was something else."""
        now = self.clock.now()
        left, self._mark = now - self._mark, now
        if self.iterations:
            last = self.iterations[-1]
            claimed = last.call_seconds + last.walk_seconds + last.draft_seconds
            last.other_seconds += max(left - claimed, 0.0)
        else:
            self.setup_seconds += left

    def claim(self, part: str, work: Callable[[], Any]) -> Any:
        """Do ``work``, and count its time for a part of the present iteration."""
        started = self.clock.now()
        result = work()
        name, iteration = f"{part}_seconds", self.iterations[-1]
        setattr(iteration, name, getattr(iteration, name) + self.clock.now() - started)
        return result


def timed(search: Any, log: PhaseLog) -> Any:
    """The same search, noting its times.

    Args:
        search: ``GreedySearch`` or ``BeamSearch``; left as it is.
        log: Is written to.
    """
    search = copy.copy(search)
    drafter = search.drafter
    surrogate = None if drafter.surrogate is None else TimedSurrogate(drafter.surrogate, log)
    strategy = TimedStrategy(drafter.strategy, log)
    search.decoder = TimedDecoder(search.decoder, log)
    search.drafter = TimedRunAhead(strategy, surrogate, drafter.shape)
    return search


class TimedDecoder(TreeDecoder):
    """A decoder whose calls are timed.

    Args:
        decoder: Does the work.
        log: Is written to.
    """

    def __init__(self, decoder: TreeDecoder, log: PhaseLog):
        self.decoder = decoder
        self.log = log

    @property
    def max_depth(self) -> int:
        return self.decoder.max_depth

    @property
    def num_heads(self) -> int:
        return self.decoder.num_heads

    @property
    def heads_trained(self) -> bool:
        return self.decoder.heads_trained

    def surrogate(self) -> Surrogate | None:
        return self.decoder.surrogate()

    def start(
        self, memory: torch.Tensor, memory_lengths: torch.Tensor, with_heads: bool = True
    ) -> TreeState:
        return self.decoder.start(memory, memory_lengths, with_heads)

    def extend(
        self,
        state: TreeState,
        tokens: torch.Tensor,
        parents: torch.Tensor,
        present: torch.Tensor | None = None,
    ) -> NodeOutputs:
        nodes = tokens.numel() if present is None else int(present.sum())
        self.log.open(state.with_heads, len(tokens), nodes / len(tokens))
        return self.log.claim("call", lambda: self.decoder.extend(state, tokens, parents, present))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.log.iterations[-1].nodes += len(hidden)
        return self.log.claim("call", lambda: self.decoder.logits(hidden))

    def keep(self, state: TreeState, nodes: torch.Tensor) -> None:
        self.decoder.keep(state, nodes)

    def select(self, state: TreeState, utterances: torch.Tensor) -> None:
        self.decoder.select(state, utterances)


class TimedSurrogate(Surrogate):
    """A surrogate whose rows are counted; ``TimedRunAhead`` times it.

    Args:
        surrogate: Does the work.
        log: Is written to.
    """

    def __init__(self, surrogate: Surrogate, log: PhaseLog):
        self.surrogate = surrogate
        self.log = log

    @property
    def max_steps(self) -> int | None:
        return self.surrogate.max_steps

    def start(self, prefixes: Sequence[Prefix]) -> list[Any]:
        return self.surrogate.start(prefixes)

    def advance(self, states: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
        return self.surrogate.advance(states, tokens)

    def logits(self, states: Sequence[Any]) -> torch.Tensor:
        self.log.iterations[-1].draft_rows += len(states)
        return self.surrogate.logits(states)


class TimedStrategy:
    """A strategy whose walking is timed; anything else is the strategy's own.

    Args:
        strategy: Does the work.
        log: Is written to.
    """

    def __init__(self, strategy: Any, log: PhaseLog):
        self.strategy = strategy
        self.log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.strategy, name)

    def advance(self, walks: Sequence[Walk]) -> None:
        before = [walk.steps for walk in walks]
        self.log.claim("walk", lambda: self.strategy.advance(walks))
        taken = [walk.steps - steps for walk, steps in zip(walks, before, strict=True)]
        self.log.iterations[-1].rounds += max(taken)
        self.log.iterations[-1].steps += sum(taken)


class TimedRunAhead(RunAhead):
    """A drafter that is timed; its strategy is a ``TimedStrategy``."""

    def draft(self, walks: Sequence[Walk]) -> None:
        log = self.strategy.log
        log.claim("draft", lambda: super(TimedRunAhead, self).draft(walks))
        log.iterations[-1].draft_steps += max(walk.draft.depth for walk in walks)
        log.most_nodes = max(log.most_nodes, *(len(walk.draft.nodes) for walk in walks))
