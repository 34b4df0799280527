"""Greedy search with chains as drafts in one call of the native kernels."""

from __future__ import annotations

from ctypes import addressof, c_void_p
from typing import NamedTuple

import torch

from espnet_medusa.decoding.runtime.heads import PackedCrossKeysValues
from espnet_medusa.decoding.runtime.native.library import (
    CallArguments,
    LoopDraftsArguments,
    LoopModelArguments,
    LoopPlanArguments,
    LoopRowArguments,
    LoopRulesArguments,
    ShortlistArguments,
    address,
    kernels,
)
from espnet_medusa.decoding.runtime.native.operations import NativeLinear, NativeNorm
from espnet_medusa.decoding.runtime.native_decoder import NativeAttendingHeads, NativeStack
from espnet_medusa.decoding.tree.chains import ChainBatch, ChainRow, ChainRules
from espnet_medusa.decoding.tree.depth_plan import DepthPlan
from espnet_medusa.decoding.tree.tree_decoder import TreeState


class TextDrafts(NamedTuple):
    """How texts draft, and after them heads: ``CascadeProposer``."""

    times: range  # timestamps, which alignment skips
    heads_depth: int  # most tokens of drafts by heads


class NativeLoop:
    """Decodes U utterances to their ends.

    Args:
        layers: Of the decoder.
        norm: After the layers.
        projection: To the logits; its dequantized rows are the token embeddings.
        positions: (positions, D) float32.
        heads: That draft; None: no drafts by heads.
        texts: How texts draft; None: not.
    """

    queues = False

    def __init__(
        self,
        layers: NativeStack,
        norm: NativeNorm | None,
        projection: NativeLinear,
        positions: torch.Tensor,
        heads: NativeAttendingHeads | None,
        texts: TextDrafts | None = None,
    ):
        self.layers, self.norm, self.projection = layers, norm, projection
        self.positions, self.heads, self.texts = positions, heads, texts

    def __call__(self, batch: ChainBatch) -> None:
        """Decode as ``ChainLoop``; the tree state is not changed."""
        rules, rows, plan = batch.rules, batch.rows, batch.plan
        state: TreeState = batch.begin(range(len(rows)))
        layer, cross = self.layers[0], state.encoder_keys_values
        size = layer.num_heads * layer.head_size
        shape = len(self.layers), len(rows), batch.longest, 2, size
        slots = torch.empty(shape, dtype=torch.float32)
        packed = (c_void_p * len(self.layers))(*(part.packed.data_ptr() for part in cross))
        model = LoopModelArguments(
            *(addressof(self.layers.arguments), len(self.layers)),
            None if self.norm is None else addressof(self.norm.arguments),
            *(addressof(self.projection.arguments), self.positions.data_ptr()),
            *(addressof(packed), slots.data_ptr(), batch.longest),
        )
        call = CallArguments(
            *(len(rows), layer.num_heads, layer.head_size, None),
            *(None, None, batch.longest, None, None, 0),
            *(None, cross[0].frames, address(state.encoder_out_mask), torch.get_num_threads()),
        )
        few = None if self.heads is None else self.heads.shortlist  # kept during the call
        drafts = self._drafts(rules, few, state.cross_keys_values)
        blocked = None if rules.blocked is None else rules.blocked.contiguous()
        limits = LoopRulesArguments(
            *(address(blocked), 0 if blocked is None else len(blocked)),
            *(rules.eos, rules.renormalize, *_limits_of_times(rules.timestamps)),
        )
        memory = [_RowMemory(row, rules.depth, size, self.texts is not None) for row in rows]
        arguments = (LoopRowArguments * len(rows))(*(one.arguments for one in memory))

        planned = None if plan is None else _PlanMemory(plan, max(row.max_length for row in rows))
        depths = None if planned is None else planned.arguments
        loop = kernels().begin_chains(model, drafts, limits, depths, call, arguments)
        try:
            while (row := kernels().run_chains(loop)) >= 0:
                arguments[row].gives_up = not memory[row].write(arguments[row].written)
        finally:
            kernels().end_chains(loop)
        for one, results in zip(memory, arguments, strict=True):
            one.finish(results)
        if planned is not None:
            planned.finish()

    def _drafts(self, rules: ChainRules, few, cross: PackedCrossKeysValues) -> LoopDraftsArguments:
        heads, texts = self.heads, self.texts or TextDrafts(range(0), rules.depth)
        limits = texts.heads_depth, texts.times.start, texts.times.stop, rules.min_log_prob
        if heads is None:
            return LoopDraftsArguments(rules.depth, *limits, None, None, None, None, None)
        columns = ShortlistArguments() if few is None else few.arguments
        drafts = LoopDraftsArguments(
            *(rules.depth, *limits, addressof(heads.arguments)),
            *(addressof(heads.projection.arguments), addressof(columns)),
            *(address(heads.vocabulary), cross.keys_values.packed.data_ptr()),
        )
        drafts.columns = columns  # keeps its memory allocated
        return drafts


class _PlanMemory:
    """What the kernels read and write for a plan of depths; ``most``: calls after the first one."""

    def __init__(self, plan: DepthPlan, most: int):
        self.plan, self.depths = plan, torch.tensor(plan.depths)
        self.counts = torch.empty(2, most, dtype=torch.long)
        self.seconds = torch.empty(most, dtype=torch.double)
        self.arguments = LoopPlanArguments(
            *(address(self.depths), plan.trial, plan.trial_calls, 0),
            *(*map(address, self.counts), address(self.seconds)),
        )

    def finish(self) -> None:
        calls = self.arguments.calls
        columns = *self.counts[:, :calls].tolist(), self.seconds[:calls].tolist()
        self.plan.calls += zip(*columns, strict=True)


def _limits_of_times(rules) -> tuple[int, int, int]:
    """Return the first timestamp, the end of all, and the largest first one or -1."""
    if rules is None:
        return 0, 0, -1
    latest = -1 if rules.latest_first is None else rules.latest_first
    return rules.first, rules.last + 1, latest


class _RowMemory:
    """What the kernels read and write for a row."""

    def __init__(self, row: ChainRow, depth: int, size: int, with_text: bool):
        self.row, self.written = row, 0
        self.prompt = torch.tensor([*row.prompt])
        self.tokens = torch.empty(row.max_length + 1, dtype=torch.long)
        self.log_probs = torch.empty(row.max_length + 1, dtype=torch.float32)
        self.drafted = torch.zeros(2, max(depth, 1), dtype=torch.long)
        self.hidden = torch.empty(size, dtype=torch.float32)
        probed = -1 if row.probed is None else row.probed
        given = row.text if with_text else None
        self.text = None if given is None else torch.tensor([*given], dtype=torch.long)
        text = address(self.text), -1 if given is None else len(given)
        parts = self.hidden, self.tokens, self.log_probs
        self.arguments = LoopRowArguments(
            *(self.prompt.data_ptr(), len(self.prompt), row.max_length, row.min_length),
            *(row.asks, 0, probed, *text, *map(address, parts)),
            *(0, 0, 0, *map(address, self.drafted), 0.0, 0.0),
        )

    def write(self, count: int) -> bool:
        """Report the tokens up to a number; return whether the text goes on."""
        new = slice(self.written, count)
        self.written = count
        return self.row.write(self.tokens[new].tolist(), self.log_probs[new].tolist())

    def finish(self, results: LoopRowArguments) -> None:
        row = self.row
        self.write(results.written)
        row.calls, row.nodes = results.calls, results.nodes
        row.seconds, row.draft_seconds = results.seconds, results.draft_seconds
        drafted, accepted = self.drafted.tolist()
        steps = len(drafted) - drafted.count(0)  # a draft of n steps has one of n - 1, too
        row.drafted, row.accepted = drafted[:steps], accepted[:steps]
        row.hidden = self.hidden
