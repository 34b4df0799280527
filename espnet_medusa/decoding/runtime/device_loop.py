"""Greedy search with chains as drafts on a GPU, where the host only replays graphs and reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from espnet_medusa.decoding.runtime.chain_graph import GraphAttendingHeads
from espnet_medusa.decoding.runtime.loop_graphs import CALLS_PER_READ, LoopGraphs
from espnet_medusa.decoding.tree.chains import ChainRow, ChainRules
from espnet_medusa.decoding.tree.depth_plan import DepthPlan
from espnet_medusa.decoding.tree.proposer import MISSING
from espnet_medusa.decoding.tree.token_tree import ROOT, chain_parents, upload
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder, TreeState


class DeviceLoop:
    """Decodes U utterances to their ends.

    Args:
        runtime: A ``CudaGraphWhisperRuntime``.
        heads: The drafter; None: no drafts.
    """

    def __init__(self, runtime: TreeDecoder, heads: GraphAttendingHeads | None):
        self.runtime, self.heads = runtime, heads

    def __call__(
        self, state: TreeState, rules: ChainRules, rows: Sequence[ChainRow], plan: DepthPlan | None
    ) -> None:
        """Decode as ``ChainLoop``; the depth changes at most between two reads.

        ``draft_seconds`` remain 0, because drafting is a part of the iterations.
        """
        started, texts = time.perf_counter(), [LoopText(row, rules.eos) for row in rows]
        order = range(len(texts))
        longest = max(len(row.prompt) + row.max_length for row in rows)
        state.storage.reserve(longest + rules.depth)
        reads, graphs = 0, None
        while running := [text for text in texts if text.running]:
            most = min(CALLS_PER_READ, max(text.left for text in running))
            longest = max(text.num_slots for text in running)
            if plan is not None:  # a trial is the second read's calls
                call = 1 + (reads - 1) * CALLS_PER_READ
                rules = replace(rules, depth=plan.depth(len(running), call))
            with self.runtime.graph_memory.lock:
                last, graphs = graphs, self._graphs(state, rules, rows, len(texts))
                if last is None:
                    self._begin(state, graphs, rules, rows)
                elif graphs is not last:
                    moved = [(row, place) for place, row in enumerate(order) if place != row]
                    if moved:
                        state.storage.move(*zip(*moved, strict=True))
                    graphs.continue_after(last, order)
                for call in range(0 if reads else 1, most):
                    graphs.iterate(state, longest + call * (1 + rules.depth))
                log = graphs.read(most)
            for call in log:
                for text, columns in zip(texts, call, strict=True):
                    text.read(*columns)
            now = time.perf_counter()
            for text in running:
                text.row.seconds += (now - started) / len(running)
            if plan is not None and reads:
                plan.calls += [(len(running), rules.depth, (now - started) / most)] * most
            started, reads = now, reads + 1
            order = rows_that_stay([text.running for text in texts])
            texts = [texts[row] for row in order]

    def _begin(
        self, state: TreeState, graphs: LoopGraphs, rules: ChainRules, rows: Sequence[ChainRow]
    ) -> None:
        """Evaluate the prompts, and write the first token of each text."""
        sizes = [len(row.prompt) for row in rows]
        parents = [chain_parents(size, ROOT, 0) for size in sizes]
        outputs = self.runtime.extend(state, [[*row.prompt] for row in rows], parents)
        starts = [*accumulate(sizes, initial=0)]
        for row, start in zip(rows, starts, strict=False):
            if row.probed is not None:
                row.hidden = outputs.hidden[start + row.probed]
        last = upload([end - 1 for end in starts[1:]], outputs.hidden.device)
        graphs.begin(state, rules, rows, outputs.hidden[last])

    def _graphs(
        self, state: TreeState, rules: ChainRules, rows: Sequence[ChainRow], count: int
    ) -> LoopGraphs:
        """Return the storage's graphs of so many utterances for such rules."""
        blocked, times = rules.blocked, rules.timestamps
        heads = self.heads if rules.depth else None
        limited = any(row.min_length for row in rows)
        key = (
            *(count, heads, rules.eos, rules.depth, rules.min_log_prob, rules.renormalize, limited),
            None if blocked is None else blocked.shape,
            None if times is None else (times.first, times.last, times.latest_first),
        )
        loops = state.storage.loops
        if key not in loops:
            loops[key] = LoopGraphs(self.runtime, state.storage, heads, rules, limited, count)
        return loops[key]


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
        missing = [0] * (drafted - len(row.drafted))
        row.drafted, row.accepted = row.drafted + missing, row.accepted + missing
        for step in range(drafted):
            row.drafted[step] += 1
            row.accepted[step] += step < steps - 1

    def _count_drafts(self, chain: Sequence[float]) -> tuple[int, int]:
        """Return the number of drafted tokens, and of those whose next token may be needed."""
        for step, token in enumerate(chain):
            if token == MISSING:
                return step, step
            if token == self.eos or step + 1 >= self.left:
                return step + 1, step
        return len(chain), len(chain)
