"""Timing of the parts of a search, without a change to the search.

Decoder, proposer, strategy and drafter are each replaced by one that does the same and notes
how long it took. What is between them is left over: bookkeeping, and dropping nodes.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.state import SearchState
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftInput, Proposer, States
from espnet_medusa.tree.tree_decoder import NodeOutputs, TreeState


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
        rows: Utterances in the batch.
        row_nodes: Nodes per row, on average, prompts included.
        nodes: Nodes whose logits are wanted, of all rows.
        rounds: Steps of the utterance that walked farthest.
        steps: Steps that utterances walked, all together.
        drafts: Times that something was run ahead: after the call, of the first one before, too.
        draft_steps: Steps run ahead.
        draft_rows: Prefixes that the proposer was asked about in them.
        begin_seconds: What the drafter does once for a batch, such as CTC's projection.
        call_seconds: ``extend`` and ``logits``.
        step_seconds: Judging what the call says, and taking the steps that it allows.
        draft_seconds: Running ahead.
        other_seconds: The rest.
    """

    rows: int = 0
    row_nodes: float = 0.0
    nodes: int = 0
    rounds: int = 0
    steps: int = 0
    drafts: int = 0
    draft_steps: int = 0
    draft_rows: int = 0
    begin_seconds: float = 0.0
    call_seconds: float = 0.0
    step_seconds: float = 0.0
    draft_seconds: float = 0.0
    other_seconds: float = 0.0


@dataclass
class PhaseLog:
    """What timed parts write down during one run of a search.

    Attributes:
        clock: Tells the time.
        iterations: In order; the last one is under way.
        setup_seconds: Before the first decoder call, beside what the drafter does.
        most_nodes: Nodes of the largest draft of one utterance.
    """

    clock: Clock
    iterations: list[Iteration] = field(default_factory=list)
    setup_seconds: float = 0.0
    most_nodes: int = 0
    _mark: float = 0.0
    _claimed: float = 0.0  # since the mark

    @property
    def current(self) -> Iteration:
        """The iteration under way."""
        return self.iterations[-1]

    def begin(self) -> None:
        """The search starts."""
        self.iterations.append(Iteration())
        self._mark = self.clock.now()

    def open(self, rows: int, row_nodes: float) -> None:
        """A decoder call comes: of the first iteration, or of another one."""
        self.close()
        if self.current.rows:
            self.iterations.append(Iteration())
        self.current.rows, self.current.row_nodes = rows, row_nodes

    def close(self) -> None:
        """All since ``begin`` or the last ``open`` that no part has claimed was something else."""
        now = self.clock.now()
        left = max(now - self._mark - self._claimed, 0.0)
        self._mark, self._claimed = now, 0.0
        if self.current.rows:
            self.current.other_seconds += left
        else:
            self.setup_seconds += left

    def claim(self, part: str, work: Callable[[], Any]) -> Any:
        """Do ``work``, and count its time for a part of the present iteration."""
        started = self.clock.now()
        result = work()
        name, seconds = f"{part}_seconds", self.clock.now() - started
        setattr(self.current, name, getattr(self.current, name) + seconds)
        self._claimed += seconds
        return result


def timed(search: Any, log: PhaseLog) -> Any:
    """The same search, noting its times.

    Args:
        search: ``GreedySearch`` or ``BeamSearch``; left as it is.
        log: Is written to.
    """
    search = copy.copy(search)
    drafter = search.drafter
    strategy = TimedStrategy(drafter.strategy, log)
    proposer = drafter.proposer and TimedProposer(drafter.proposer, log)
    search.decoder = TimedDecoder(search.decoder, log)
    search.drafter = TimedRunAhead(RunAhead(strategy, proposer, drafter.shape), log)
    return search


class Timed:
    """Does what a part of a search does; what is not written here is the part's own.

    Args:
        part: Does the work.
        log: Is written to.
    """

    def __init__(self, part: Any, log: PhaseLog):
        self.part = part
        self.log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)


class TimedDecoder(Timed):
    """A ``TreeDecoder`` whose calls are timed."""

    def extend(
        self, state: TreeState, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]
    ) -> NodeOutputs:
        self.log.open(len(tokens), sum(map(len, tokens)) / len(tokens))
        return self.log.claim("call", lambda: self.part.extend(state, tokens, parents))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.log.current.nodes += len(hidden)
        return self.log.claim("call", lambda: self.part.logits(hidden))


class TimedProposer(Timed):
    """A ``Proposer`` whose rows are counted; ``TimedRunAhead`` times it."""

    def begin(
        self,
        roots: Sequence[Prefix],
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        draft_inputs: Sequence[DraftInput] | None = None,
        cross_keys_values: Any = None,
    ) -> Proposer:
        begun = self.part.begin(roots, memory, memory_lengths, draft_inputs, cross_keys_values)
        return self if begun is self.part else TimedProposer(begun, self.log)

    @property
    def early(self) -> Proposer | None:
        early = self.part.early
        return early and TimedProposer(early, self.log)

    def logits(self, states: States) -> torch.Tensor:
        logits = self.part.logits(states)
        self.log.current.draft_rows += len(logits)
        return logits


class TimedStrategy(Timed):
    """A ``Strategy`` whose judging and walking are timed."""

    def judge(self, search_states: Sequence[SearchState], logits: torch.Tensor) -> None:
        self.log.claim("search_state", lambda: self.part.judge(search_states, logits))

    def advance(self, search_states: Sequence[SearchState]) -> None:
        before = [search_state.steps for search_state in search_states]
        self.log.claim("search_state", lambda: self.part.advance(search_states))
        taken = [
            search_state.steps - steps
            for search_state, steps in zip(search_states, before, strict=True)
        ]
        self.log.current.rounds += max(taken)
        self.log.current.steps += sum(taken)


class TimedRunAhead(Timed):
    """A ``RunAhead`` that is timed."""

    def begin(
        self,
        search_states: Sequence[SearchState],
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        draft_inputs: Sequence[DraftInput],
        cross_keys_values: Any,
    ) -> "TimedRunAhead":
        inputs = search_states, memory, memory_lengths, draft_inputs, cross_keys_values
        begun = self.log.claim("begin", lambda: self.part.begin(*inputs))
        return TimedRunAhead(begun, self.log)

    def draft_prompt(self, search_states: Sequence[SearchState]) -> None:
        self._draft(self.part.draft_prompt, search_states)

    def draft(self, search_states: Sequence[SearchState]) -> None:
        self._draft(self.part.draft, search_states)

    def _draft(
        self, draft: Callable[[Sequence[SearchState]], None], search_states: Sequence[SearchState]
    ) -> None:
        self.log.claim("draft", lambda: draft(search_states))
        depth = max(search_state.draft.depth for search_state in search_states)
        self.log.current.drafts += depth > 0
        self.log.current.draft_steps += depth
        self.log.most_nodes = max(
            self.log.most_nodes, *(len(search_state.draft.nodes) for search_state in search_states)
        )
