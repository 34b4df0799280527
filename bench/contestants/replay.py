"""Replay drafts with a stated acceptance, for heads with random weights, which accept nothing.

All work of drafting is done. Then the drafted nodes are replaced by recorded nodes that the
baseline search visited, for as many steps as the call should take. Wrong nodes fill up the number
of drafted nodes. For recorded prefixes the recorded logits replace the decoder's. In bfloat16 those
round differently with other nodes in the call, and random weights would leave the recorded path.
"""

import itertools
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.search import Search
from espnet_medusa.search.state import SearchState
from espnet_medusa.tree.prefix import Prefix

Tokens = tuple[int, ...]
Prefixes = Sequence[tuple[SearchState, Prefix]]
PATTERN_LENGTH = 1000


@dataclass
class Record:
    """The baseline search of one input."""

    # By step, the tokens of the running hypotheses.
    beams: dict[int, list[Tokens]] = field(default_factory=dict)
    # By prefix, the decoder's logits.
    logits: dict[Tokens, torch.Tensor] = field(default_factory=dict)

    @cached_property
    def visited(self) -> set[Tokens]:
        """All prefixes of the ended search."""
        return {tokens for beam in self.beams.values() for tokens in beam}


class Hooked:
    """Wraps the planner and the strategy of a search; its own time is counted separately.

    Attributes:
        seconds: Time of the wrappers.
    """

    def __init__(self, search: Search):
        self.search = search
        self.seconds = 0.0
        self.names: dict[int, str] = {}
        self.judge = search.strategy.judge
        self.planner: RunAhead = search.planner
        search.strategy.judge, search.planner = self._judge, self
        self.expected: list[str] = []

    def expect(self, names: Sequence[str]) -> None:
        """Set the names of the next inputs, in order."""
        self.expected, self.names, self.seconds = [*names], {}, 0.0

    def __getattr__(self, name: str):
        """Everything else is the planner's."""
        return getattr(self.planner, name)

    def begin(self, context) -> "Hooked":
        """Begin as ``DraftPlanner.begin``."""
        self.planner = self.planner.begin(context)
        return self

    def name(self, state: SearchState) -> str:
        """Return the input of a state; states first appear in the order of the inputs."""
        if id(state) not in self.names:
            self.names[id(state)] = self.expected[len(self.names)]
        return self.names[id(state)]

    def draft(self, states: Sequence[SearchState]) -> None:
        """Draft, then call ``drafted`` for each state."""
        self.planner.draft(states)
        started = time.perf_counter()
        for state in states:
            self.drafted(state)
        self.seconds += time.perf_counter() - started

    def _judge(self, states: Sequence[SearchState], logits: torch.Tensor) -> None:
        started = time.perf_counter()
        prefixes = [(state, prefix) for state in states for prefix in state.draft.nodes]
        logits = self.evaluated(prefixes, logits)
        self.seconds += time.perf_counter() - started
        self.judge(states, logits)

    def drafted(self, state: SearchState) -> None:
        """Handle the draft of a state."""

    def evaluated(self, prefixes: Prefixes, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits (R, V) that the search receives for these prefixes."""
        return logits


class Recorder(Hooked):
    """Records a baseline search in ``records``, by input."""

    def __init__(self, search: Search):
        super().__init__(search)
        self.records: defaultdict[str, Record] = defaultdict(Record)

    def drafted(self, state: SearchState) -> None:
        record = self.records[self.name(state)]
        record.beams[state.steps] = [_tokens(hypothesis.prefix) for hypothesis in state.running]

    def evaluated(self, prefixes: Prefixes, logits: torch.Tensor) -> torch.Tensor:
        for (state, prefix), row in zip(prefixes, logits, strict=True):
            self.records[self.name(state)].logits[_tokens(prefix)] = row.clone()
        return logits


class Replayer(Hooked):
    """Replaces drafts so that calls of a drafted search take a stated number of steps.

    Args:
        records: Records of the baseline search, by input.
        steps: Number of steps of each call, in turn; at most the number of drafted steps.
    """

    def __init__(
        self, search: Search, records: dict[str, Record], steps: Sequence[int], vocab_size: int
    ):
        super().__init__(search)
        self.records, self.steps, self.vocab_size = records, steps, vocab_size
        self.counts: dict[str, Iterator[int]] = {}

    def expect(self, names: Sequence[str]) -> None:
        super().expect(names)
        for name in names:
            start = random.Random(name).randrange(len(self.steps))
            self.counts[name] = itertools.islice(itertools.cycle(self.steps), start, None)

    def drafted(self, state: SearchState) -> None:
        name, draft = self.name(state), state.draft
        record, room = self.records[name], len(draft.nodes)
        nodes = [h.prefix for h in state.running if not h.prefix.evaluated]
        known = {_tokens(hypothesis.prefix): hypothesis.prefix for hypothesis in state.running}
        last = state.steps + next(self.counts[name])
        for step in range(state.steps + 1, last):
            for tokens in record.beams.get(step, []):
                if tokens not in known and tokens[:-1] in known:
                    known[tokens] = known[tokens[:-1]].child(tokens[-1])
                    nodes.append(known[tokens])
        nodes += self._wrong(nodes, record.visited, room - len(nodes))
        draft.nodes = dict.fromkeys(nodes[:room], 0.0)
        draft.ends = {}

    def _wrong(self, nodes: Sequence[Prefix], visited: set[Tokens], count: int) -> list[Prefix]:
        """Return a chain of ``count`` unvisited prefixes after the last node."""
        prefix, wrong = nodes[-1], []
        tokens = _tokens(prefix)
        for _ in range(count):
            unvisited = (one for one in range(self.vocab_size) if (*tokens, one) not in visited)
            token = next(unvisited)
            prefix, tokens = prefix.child(token), (*tokens, token)
            wrong.append(prefix)
        return wrong

    def evaluated(self, prefixes: Prefixes, logits: torch.Tensor) -> torch.Tensor:
        for row, (state, prefix) in enumerate(prefixes):
            recorded = self.records[self.name(state)].logits.get(_tokens(prefix))
            if recorded is not None:
                logits[row] = recorded
        return logits


def stated_steps(mean: float) -> list[int]:
    """Return numbers of steps per call with this mean, evenly mixed."""
    ends = [math.floor((call + 1) * mean) for call in range(PATTERN_LENGTH)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def measured_steps(calls: Sequence[int]) -> list[int]:
    """Return the steps of measured calls in random order."""
    return random.Random(0).sample([*calls], len(calls))


def _tokens(prefix: Prefix) -> Tokens:
    return tuple(prefix.tokens())
