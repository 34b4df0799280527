"""A stated acceptance for heads that accept nothing: replay what the plain search found.

Heads on random weights draft tokens that never come. Here all their work is done; then the nodes
that they drafted are replaced by those that the plain search visited, recorded beforehand, as many
steps as a call shall take, and by wrong ones up to the number of nodes that were drafted. Of
recorded prefixes the decoder says what it said in the plain search: in bfloat16 a node alone and
one among others round differently, and random weights would leave the recorded path for that.
"""

import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.search import Search
from espnet_medusa.search.state import SearchState, Strategy
from espnet_medusa.tree.prefix import Prefix

Tokens = tuple[int, ...]
PATTERN_LENGTH = 1000


@dataclass
class Record:
    """A plain search of one input.

    Attributes:
        beams: By step, the tokens of the hypotheses that it waited for.
        logits: By prefix, what the decoder said.
    """

    beams: dict[int, list[Tokens]] = field(default_factory=dict)
    logits: dict[Tokens, torch.Tensor] = field(default_factory=dict)

    @cached_property
    def visited(self) -> set[Tokens]:
        """All prefixes, once the search has ended."""
        return {tokens for beam in self.beams.values() for tokens in beam}


class Hooked:
    """A search between whose parts somebody listens; his time is kept apart.

    Args:
        search: Its planner and its strategy are wrapped.

    Attributes:
        seconds: Spent listening.
    """

    def __init__(self, search: Search):
        self.search = search
        self.seconds = 0.0
        self.names: dict[int, str] = {}
        self.judge = search.strategy.judge
        self.planner: RunAhead = search.planner
        search.strategy.judge, search.planner = self._judge, self
        self.waiting: list[str] = []

    def expect(self, names: Sequence[str]) -> None:
        """Say which inputs come next, in order."""
        self.waiting, self.names, self.seconds = [*names], {}, 0.0

    @property
    def strategy(self) -> Strategy:
        """The planner's."""
        return self.planner.strategy

    @property
    def shape(self):
        """The planner's."""
        return self.planner.shape

    @property
    def needs_head_input(self) -> bool:
        """The planner's."""
        return self.planner.needs_head_input

    def begin(self, context) -> "Hooked":
        """As ``DraftPlanner.begin``; heads draft for any utterances as they are."""
        self.planner = self.planner.begin(context)
        return self

    def name(self, state: SearchState) -> str:
        """Which input a state decodes; states first appear in the inputs' order."""
        if id(state) not in self.names:
            self.names[id(state)] = self.waiting[len(self.names)]
        return self.names[id(state)]

    def draft_prompt(self, states: Sequence[SearchState]) -> None:
        """As ``DraftPlanner.draft_prompt``; heads draft nothing before the first call."""
        self.planner.draft_prompt(states)

    def draft(self, states: Sequence[SearchState]) -> None:
        """The drafter's work, then the listener's."""
        self.planner.draft(states)
        started = time.perf_counter()
        for state in states:
            self.drafted(state)
        self.seconds += time.perf_counter() - started

    def _judge(self, states: Sequence[SearchState], logits: torch.Tensor) -> None:
        started = time.perf_counter()
        prefixes = [(state, prefix) for state in states for prefix in state.draft.nodes]
        logits = self.said(prefixes, logits)
        self.seconds += time.perf_counter() - started
        self.judge(states, logits)

    def drafted(self, state: SearchState) -> None:
        """A state has its draft."""

    def said(
        self, prefixes: Sequence[tuple[SearchState, Prefix]], logits: torch.Tensor
    ) -> torch.Tensor:
        """The decoder has said what follows some prefixes (R, V); what the search shall hear."""
        return logits


class Recorder(Hooked):
    """Listens to a plain search.

    Args:
        search: Without drafts.
        records: By input, written to.
    """

    def __init__(self, search: Search, records: dict[str, Record]):
        super().__init__(search)
        self.records = records

    def drafted(self, state: SearchState) -> None:
        record = self.records.setdefault(self.name(state), Record())
        record.beams[state.steps] = [_tokens(hypothesis.prefix) for hypothesis in state.running]

    def said(
        self, prefixes: Sequence[tuple[SearchState, Prefix]], logits: torch.Tensor
    ) -> torch.Tensor:
        for (state, prefix), row in zip(prefixes, logits, strict=True):
            record = self.records.setdefault(self.name(state), Record())
            record.logits[_tokens(prefix)] = row.clone()
        return logits


class Replayer(Hooked):
    """Makes calls of a drafted search take as many steps as is stated.

    Args:
        search: With drafts.
        records: Of the plain search, by input.
        steps: By call, in turn, how many; more than were drafted is not possible.
        vocab_size: V.
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
        """So many prefixes that nobody asks for, a chain behind the last node."""
        prefix, wrong = nodes[-1], []
        tokens = _tokens(prefix)
        for _ in range(count):
            token = next(
                token for token in range(self.vocab_size) if (*tokens, token) not in visited
            )
            prefix, tokens = prefix.child(token), (*tokens, token)
            wrong.append(prefix)
        return wrong

    def said(
        self, prefixes: Sequence[tuple[SearchState, Prefix]], logits: torch.Tensor
    ) -> torch.Tensor:
        for row, (state, prefix) in enumerate(prefixes):
            recorded = self.records[self.name(state)].logits.get(_tokens(prefix))
            if recorded is not None:
                logits[row] = recorded
        return logits


def stated_steps(mean: float) -> list[int]:
    """Whole numbers of steps per call with this mean, evenly mixed."""
    ends = [math.floor((call + 1) * mean) for call in range(PATTERN_LENGTH)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def measured_steps(calls: Sequence[int]) -> list[int]:
    """Steps of measured calls in an order of chance."""
    return random.Random(0).sample([*calls], len(calls))


def _tokens(prefix: Prefix) -> Tokens:
    return tuple(prefix.tokens())
