"""Greedy search with chains as drafts on a GPU, where the host only replays graphs and reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from espnet_medusa.decoding.runtime.chain_graph import GraphAttendingHeads
from espnet_medusa.decoding.runtime.graph_storage import first_capacity
from espnet_medusa.decoding.runtime.loop_graphs import CALLS_PER_READ, LoopGraphs
from espnet_medusa.decoding.tree.chains import ChainBatch, ChainRow
from espnet_medusa.decoding.tree.depth_plan import DepthPlan
from espnet_medusa.decoding.tree.draft_counts import count_draft
from espnet_medusa.decoding.tree.proposer import MISSING
from espnet_medusa.decoding.tree.token_tree import ROOT, chain_parents, upload
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder, TreeState

REFILL_SHARE = 4  # waiting utterances begin when so large a share (1/4) of the rows is free


class DeviceLoop:
    """Decodes U utterances to their ends.

    Waiting utterances begin in a storage of their own, and move to rows of those that have ended.
    When none is left, rows leave.

    Args:
        runtime: A ``CudaGraphWhisperRuntime``.
        heads: The drafter; None: no drafts.
    """

    queues = True

    def __init__(self, runtime: TreeDecoder, heads: GraphAttendingHeads | None):
        self.runtime, self.heads = runtime, heads

    def __call__(self, batch: ChainBatch) -> None:
        """Decode as ``ChainLoop``; the depth changes at most between two reads.

        ``draft_seconds`` remain 0, because drafting is a part of the iterations.
        """
        together = min(batch.together, len(batch.rows))
        plan = batch.plan or DepthPlan([batch.rules.depth] * together)
        waiting, depth = [*range(together, len(batch.rows))], plan.depth(together, 0)
        refill = -(-together // REFILL_SHARE)
        seats, calls = self._begin(batch, range(together), depth), 1
        while True:
            while waiting and len(seats.free) >= min(refill, len(waiting)):
                new, waiting = waiting[:refill], waiting[refill:]
                seats.take(self._begin(batch, new, depth, refill))
            if not (running := [text for text in seats.texts if text.running]):
                return
            order = range(len(seats.texts))
            if not waiting:
                order = rows_that_stay([text.running for text in seats.texts])
            depth = plan.depth(len(running), calls)
            most = min(CALLS_PER_READ, max(text.left for text in running))
            longest = max(text.num_slots for text in running)
            with self.runtime.graph_memory.lock:
                seats.continue_in(self._graphs(batch, seats.state, depth, len(order)), order)
                started = time.perf_counter()
                for call in range(most):
                    seats.graphs.iterate(seats.state, longest + call * (1 + depth))
                seconds = seats.read(most, started)
            plan.calls += [(len(running), depth, seconds / most)] * most
            calls += CALLS_PER_READ

    def _begin(
        self, batch: ChainBatch, numbers: Sequence[int], depth: int, count: int = 0
    ) -> Seats:
        """Evaluate the prompts of utterances, and write the first token of each text.

        ``count``: number of rows, because each number has graphs of its own; those that are left
        repeat an utterance.
        """
        every = [*numbers, *[numbers[-1]] * (count - len(numbers))]
        rows, state = [batch.rows[number] for number in every], batch.begin(every)
        started = time.perf_counter()
        state.storage.reserve(batch.longest + batch.rules.depth)
        sizes = [len(row.prompt) for row in rows]
        parents = [chain_parents(size, ROOT, 0) for size in sizes]
        outputs = self.runtime.extend(state, [[*row.prompt] for row in rows], parents)
        starts = [*accumulate(sizes, initial=0)]
        for row, start in zip(rows, starts, strict=False):
            if row.probed is not None:
                row.hidden = outputs.hidden[start + row.probed]
        last = upload([end - 1 for end in starts[1:]], outputs.hidden.device)
        with self.runtime.graph_memory.lock:
            texts = [LoopText(row, batch.rules.eos) for row in rows[: len(numbers)]]
            seats = Seats(state, self._graphs(batch, state, depth, len(rows)), texts)
            seats.graphs.begin(state, batch.rules, rows, outputs.hidden[last])
            seats.read(1, started)
        return seats

    def _graphs(self, batch: ChainBatch, state: TreeState, depth: int, count: int) -> LoopGraphs:
        """Return the storage's graphs of so many utterances with drafts of this depth."""
        rules = replace(batch.rules, depth=depth)
        limited = any(row.min_length for row in batch.rows)
        blocked, times = rules.blocked, rules.timestamps
        heads = self.heads if depth else None
        key = (
            *(count, heads, rules.eos, depth, rules.min_log_prob, rules.renormalize, limited),
            None if blocked is None else blocked.shape,
            None if times is None else (times.first, times.last, times.latest_first),
        )
        loops = state.storage.loops
        if key not in loops:
            loops[key] = LoopGraphs(self.runtime, state.storage, heads, rules, limited, count)
        return loops[key]


@dataclass
class Seats:
    """Utterances in a storage: row r decodes text r, or is free because that has ended."""

    state: TreeState
    graphs: LoopGraphs
    texts: list[LoopText]

    @property
    def free(self) -> list[int]:
        return [row for row, text in enumerate(self.texts) if not text.running]

    def read(self, calls: int, started: float) -> float:
        """Read the log of calls; divide and return the seconds since ``started``."""
        running = [text for text in self.texts if text.running]
        for call in self.graphs.read(calls):
            for text, columns in zip(self.texts, call, strict=False):
                text.read(*columns)
        seconds = time.perf_counter() - started
        for text in running:
            text.row.seconds += seconds / len(running)
        return seconds

    def take(self, others: Seats) -> None:
        """Move the utterances of other seats to free rows."""
        sources, rows = range(len(others.texts)), self.free[: len(others.texts)]
        self.state.storage.take(others.state.storage, sources, rows)
        self.graphs.take(others.graphs, sources, rows)
        for row, text in zip(rows, others.texts, strict=True):
            self.texts[row] = text

    def continue_in(self, graphs: LoopGraphs, order: Sequence[int]) -> None:
        """Go on with these graphs; ``order``: the row that each of their rows continues."""
        moved = [(row, place) for place, row in enumerate(order) if place != row]
        if moved:
            self.state.storage.take(self.state.storage, *zip(*moved, strict=True))
        if graphs is not self.graphs:
            graphs.take(self.graphs, order, range(len(order)))
        self.graphs, self.texts = graphs, [self.texts[row] for row in order]


def keys_values_size(layers: int, width: int, frames: int, positions: int) -> int:
    """Return how many numbers an utterance's keys and values are in a storage.

    They include its share of the storage in which waiting utterances begin.

    Args:
        width: Size of hidden states.
        frames: Length of the encoder output.
        positions: Of the decoder.
    """
    size = 2 * layers * (frames + first_capacity(positions)) * width
    return size + size // REFILL_SHARE


def rows_that_stay(running: Sequence[bool]) -> list[int]:
    """Return the row that each remaining row continues: all rows, or all running ones and fewer.

    Only when half of the rows have ended, the others move to the first half, because each number of
    rows has graphs of its own.
    """
    count = len(running)
    while count > 1 and 2 * sum(running) <= count:
        count = (count + 1) // 2
    later = [row for row in range(count, len(running)) if running[row]]
    return [row if running[row] or not later else later.pop() for row in range(count)]


class LoopText:
    """An utterance's text on the host, which reads the log of ``LoopGraphs``."""

    def __init__(self, row: ChainRow, eos: int):
        self.row, self.eos, self.written, self.running = row, eos, 0, True

    @property
    def left(self) -> int:
        """Most tokens that may follow."""
        return self.row.max_length - self.written

    @property
    def num_slots(self) -> int:
        """Nodes of prompt and text, without the last token."""
        return len(self.row.prompt) - 1 + self.written

    def read(
        self, nodes: Sequence[float], best: Sequence[float], log_probs: Sequence[float]
    ) -> None:
        """Append the tokens of a call, and count; arguments as in ``LoopGraphs.log``."""
        if not self.running:
            return
        row, chain = self.row, nodes[1:]
        drafted, evaluated = self._count_drafts(chain)
        row.nodes += evaluated + (1 if row.calls else len(row.prompt))
        row.calls += 1
        steps = 0
        for token, log_prob, draft in zip(best, log_probs, [*chain, MISSING], strict=True):
            self.running = row.write([int(token)], [log_prob])
            steps += 1
            if not self.running or token != draft:
                break
        self.written += steps
        count_draft(row.drafted, row.accepted, drafted, steps - 1)

    def _count_drafts(self, chain: Sequence[float]) -> tuple[int, int]:
        """Return the number of drafted tokens, and of those whose next token may be needed."""
        for step, token in enumerate(chain):
            if token == MISSING:
                return step, step
            if token == self.eos or step + 1 >= self.left:
                return step + 1, step
        return len(chain), len(chain)
