"""The device's part of ``DeviceLoop``: each iteration is one CUDA graph without a host wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from espnet_medusa.decoding.runtime.chain_graph import GraphAttendingHeads
from espnet_medusa.decoding.runtime.graph import Replayed
from espnet_medusa.decoding.runtime.graph_storage import Storage, slot_bucket
from espnet_medusa.decoding.runtime.layer import NewNodes, Packing
from espnet_medusa.decoding.runtime.tree_runtime import TreeRuntime
from espnet_medusa.decoding.tree.best_tokens import Restriction
from espnet_medusa.decoding.tree.chains import ChainRow, ChainRules
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import MISSING
from espnet_medusa.decoding.tree.token_tree import staged, upload
from espnet_medusa.decoding.tree.tree_decoder import TreeState

CALLS_PER_READ = 4  # decoder calls between two reads of the host


class LoopGraphs:
    """Tensors with fixed addresses for U utterances, and the graphs that change them.

    They use the first U rows of the storage.

    A call evaluates T = depth + 1 nodes of each utterance: its last token and a draft. Rejected
    nodes have the utterance's last slots, so that the next nodes overwrite them. Only the host
    knows that a text has ended: the graphs go on with it up to its maximum length.

    Attributes:
        known: (U,) slots of the text so far; the next nodes get the slots after them.
        left: (U,) tokens that may follow; at 0, ``known`` does not change any more.
        first, least: (U,) slot of the prompt's last token, and minimum length.
        nodes: (U, T) tokens, ``MISSING`` after the end of a draft.
        times: ``TimestampStates`` (U,) after the first node, or None.
        log: (CALLS_PER_READ, U, 3, T) nodes, best next tokens and their log-probabilities of the
            calls since the last read. float32 represents all token ids.
        call: (1,) the next call's row of the log.
    """

    def __init__(
        self,
        runtime: TreeRuntime,
        storage: Storage,
        heads: GraphAttendingHeads | None,
        rules: ChainRules,
        limited: bool,
        count: int,
    ):
        self.runtime, self.heads, self.rules, self.limited = runtime, heads, rules, limited
        # Not the storage, which refers to this object.
        self.cache, self.graph_memory = storage.cache, storage.graph_memory
        cache = self.cache
        width, device = rules.depth + 1, cache.slots.device
        self.packing = Packing([width] * count, None)
        self.numbers = torch.zeros(count, 4, dtype=torch.long, device=device)
        self.known, self.left, self.first, self.least = self.numbers.unbind(1)
        self.nodes = torch.zeros(count, width, dtype=torch.long, device=device)
        self.call = torch.zeros(1, dtype=torch.long, device=device)
        self.log = torch.zeros(CALLS_PER_READ, count, 3, width, device=device)
        self.blocked = None if rules.blocked is None else rules.blocked.to(device, copy=True)
        self.times = self.timestamps = None
        if rules.timestamps is not None:
            self.timestamps = replace(rules.timestamps, times=rules.timestamps.times.to(device))
            self.first_times = self.timestamps.states([Prefix(0)] * count, device)
            self.times = type(self.first_times)(*map(torch.clone, self.first_times))
        # Hidden states of the prompts' last tokens, T times, so that shapes are those of a call.
        table = runtime.positions
        self.prompt_hidden = cache.slots.new_zeros(count, width, table.size(1))
        # Constants.
        self.last_position = len(table) - 1
        self.steps = torch.arange(width, device=device)
        self.first_nodes = torch.arange(count, device=device) * width
        self.first_slots = torch.arange(count, device=device)[:, None] * cache.capacity
        # (capacity, capacity) additive masks: a node attends to all slots up to its own.
        self.masks = cache.slots.new_full([cache.capacity] * 2, -torch.inf).triu(1)
        self.replayed: dict[int | None, Replayed] = {}  # by number of attended slots

    def begin(
        self, state: TreeState, rules: ChainRules, rows: Sequence[ChainRow], hidden: torch.Tensor
    ) -> None:
        """Write the first tokens, given the hidden states (U, D) of the prompts' last tokens."""
        firsts = [len(row.prompt) - 1 for row in rows]
        numbers = [
            [first, row.max_length, first, row.min_length]
            for first, row in zip(firsts, rows, strict=True)
        ]
        self.numbers.copy_(staged(numbers, self.nodes.device), non_blocking=True)
        self.nodes.fill_(MISSING)
        self.call.zero_()
        if self.blocked is not None:
            self.blocked.copy_(rules.blocked)
        if self.times is not None:
            self._set_times(self.first_times)
        self.prompt_hidden.copy_(hidden[:, None])
        self._run(None, lambda: self._advance(state, self.prompt_hidden.flatten(0, 1)))

    def take(self, other: LoopGraphs, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Go on with utterances of other graphs, whose depth may differ, in these rows."""
        sources, targets = upload([sources, targets], self.nodes.device)
        width = min(self.nodes.size(1), other.nodes.size(1))
        self.numbers[targets] = other.numbers[sources]
        self.nodes.index_fill_(0, targets, MISSING)
        self.nodes[targets, :width] = other.nodes[sources, :width]
        self.call.zero_()
        if self.blocked is not None:
            self.blocked.copy_(other.blocked)
        for part, value in zip(self.times or [], other.times or [], strict=True):
            part[targets] = value[sources]

    def iterate(self, state: TreeState, longest: int) -> None:
        """Run one iteration; no text that goes on has more than ``longest`` slots."""
        attended = min(slot_bucket(longest + self.nodes.size(1)), self.cache.capacity)
        self._run(attended, partial(self._iterate, state, attended))

    def read(self, calls: int) -> list:
        """Return the log of so many calls, and begin a new one."""
        log = self.log[:calls].tolist()
        self.call.zero_()
        return log

    def _run(self, key: int | None, compute: Any) -> None:
        if key not in self.replayed:
            changed = [self.numbers, self.nodes, self.call, *(self.times or [])]
            self.replayed[key] = Replayed(self.graph_memory, self.nodes.device, changed)
        self.replayed[key].run(compute)

    def _iterate(self, state: TreeState, attended: int) -> None:
        """Evaluate the nodes, and advance."""
        slots = self.known[:, None] + self.steps
        self.cache.places = (slots + self.first_slots).flatten()
        self.cache.attended = attended
        slots = slots.flatten()
        state = self._first_rows(state)
        mask = self.masks[:, :attended].index_select(0, slots)
        mask = mask.view(len(self.nodes), 1, -1, attended)
        # Nodes after the end of a draft or of a text need any valid token and position.
        tokens, positions = self.nodes.flatten().clamp(min=0), slots.clamp(max=self.last_position)
        nodes = NewNodes(tokens, positions, mask, self.packing)
        self._advance(state, self.runtime._compute(state, nodes).hidden)

    def _first_rows(self, state: TreeState) -> TreeState:
        count, cross = len(self.nodes), state.cross_keys_values
        if cross is not None:
            cross = cross._replace(
                keys_values=cross.keys_values[:count], mask=cross.mask[:count], utterances=count
            )
        keys_values = [part[:count] for part in state.encoder_keys_values]
        return replace(
            state,
            encoder_keys_values=keys_values,
            encoder_out_mask=state.encoder_out_mask[:count],
            cross_keys_values=cross,
        )

    def _advance(self, state: TreeState, hidden: torch.Tensor) -> None:
        """Append accepted drafts and a token, and draft, given hidden states (U T, D) of nodes."""
        logits, times = self.runtime.logits(hidden), self._times_of_nodes()
        best, _, log_probs = self.runtime.best_tokens(logits, self._restriction(logits, times))
        table = best.view_as(self.nodes)
        columns = self.nodes.float(), table.float(), log_probs.view_as(self.nodes)
        self.log.index_copy_(0, self.call, torch.stack(columns, dim=1)[None])
        self.call += 1
        accepted = (table[:, :-1] == self.nodes[:, 1:]).cumprod(dim=1).sum(dim=1)
        steps = torch.minimum(accepted + 1, self.left)
        # The last accepted nodes and the tokens after them; unused if there are no more left.
        rows = accepted + self.first_nodes
        last = best[rows]
        self.known += steps
        self.left -= steps
        if times is not None:
            self._set_times(self.timestamps.advance(times.select(rows), last))
        self.nodes[:, 0] = last
        if self.heads is not None:
            tips = hidden[rows], self.runtime.embed_tokens(last)
            limits = self.rules.depth, self.rules.min_log_prob
            self.nodes[:, 1:] = self.heads.draft_tokens(*tips, state.cross_keys_values, *limits)

    def _set_times(self, times: Any) -> None:
        for part, value in zip(self.times, times, strict=True):
            part.copy_(value)

    def _times_of_nodes(self) -> Any:
        """Return the timestamp states (U T,) after all nodes, or None."""
        if self.times is None:
            return None
        states = [self.times]
        for tokens in self.nodes[:, 1:].unbind(dim=1):
            states.append(self.timestamps.advance(states[-1], tokens))
        parts = (torch.stack(part, dim=1).flatten() for part in zip(*states, strict=True))
        return type(self.times)(*parts)

    def _restriction(self, logits: torch.Tensor, times: Any) -> Restriction | None:
        """Return the rules for the tokens after all nodes; ``times``: of ``_times_of_nodes``."""
        rules, blocked = self.rules, self.blocked
        if blocked is None and times is None and not self.limited:
            return None
        lengths = (self.known - self.first)[:, None] + self.steps
        rows = None if blocked is None else lengths.flatten().clamp(max=len(blocked) - 1)
        ends = None
        if self.limited:
            ends = logits[:, rules.eos].float()
            ends = ends.masked_fill((lengths < self.least[:, None]).flatten(), -torch.inf)
            if blocked is not None:
                ends = ends.masked_fill(blocked[:, rules.eos][rows], -torch.inf)
        groups = None if times is None else self.timestamps.groups(times)
        return Restriction(rules.eos, blocked, rows, ends, None, groups, rules.renormalize)
