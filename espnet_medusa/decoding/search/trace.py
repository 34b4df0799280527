"""A trace: what each decoder call of a search evaluated, preferred and kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from espnet_medusa.decoding.search.state import Hypothesis, SearchState
from espnet_medusa.decoding.tree.prefix import Prefix

PREFERRED = 3  # next tokens of a node, at most
MILLI = 1000.0
DRAFT, DECODER, UNVERIFIED = "draft", "decoder", "unverified"  # how a token was written


@dataclass
class Node:
    """A prefix that a decoder call evaluated, or a drafted end of the text."""

    prefix: Prefix
    parent: int  # index of its parent in ``Trace.nodes``; -1: it has none
    step: int  # number of drafted tokens at its end; 0: it is a hypothesis
    score: float | None  # the drafter's log-probability of its token; None: unknown
    next: list[tuple[int, float]] = field(default_factory=list)  # tokens that the decoder preferred
    kept: bool = False  # whether a hypothesis continued from it


@dataclass
class TracedCall:
    """A decoder call; ``nodes`` are indices in ``Trace.nodes``."""

    nodes: range
    steps: list[int]  # tokens of the hypotheses before and after the call
    verifying_s: float  # seconds of decoding before the call, without drafting
    drafting_s: float  # seconds of drafting before the call


class Trace:
    """Records the search of one utterance; ``scored``: as ``StepPlanner.scores_drafts``."""

    def __init__(self, scored: bool) -> None:
        self.scored = scored
        self.calls: list[TracedCall] = []
        self.nodes: list[Node] = []
        self.numbers: dict[Prefix, int] = {}
        self.result: dict[str, Any] = {}  # set by ``finish``

    def begin_call(self, state: SearchState) -> None:
        """Record the nodes of the state's draft, before the search advances."""
        draft, first = state.draft, len(self.nodes)
        drafted = draft.nodes | draft.ends
        scores = {hypothesis.prefix: hypothesis.score for hypothesis in state.running} | drafted
        unverified = heads_of(state.running)
        for prefix, score in drafted.items():
            parent, step = prefix.parent, unverified.get(prefix, prefix.length - state.steps)
            if prefix in draft.ends and parent not in self.numbers:
                continue  # the draft budget has dropped its parent
            gain = score - scores[parent] if step > 0 and parent in scores else math.nan
            self.numbers[prefix] = len(self.nodes)
            known = gain if self.scored and math.isfinite(gain) else None
            self.nodes.append(Node(prefix, self.numbers.get(parent, -1), max(step, 0), known))
        done = state.statistics
        verifying_s = done.decoder_seconds - done.draft_seconds
        nodes, steps = range(first, len(self.nodes)), [state.steps, state.steps]
        self.calls.append(TracedCall(nodes, steps, verifying_s, done.draft_seconds))

    def record_candidates(self, prefix: Prefix) -> None:
        """Record the preferred next tokens of a hypothesis before a beam search frees them."""
        self.nodes[self.numbers[prefix]].next = preferred(prefix)

    def end_call(self, state: SearchState) -> None:
        """Record what the decoder preferred, and which hypotheses the search continues."""
        call = self.calls[-1]
        call.steps[1] = state.steps
        for node in map(self.nodes.__getitem__, call.nodes):
            node.next = node.next or preferred(node.prefix)
        for hypothesis in state.running:
            for prefix in hypothesis.prefix.ancestors():
                if prefix in self.numbers:
                    self.nodes[self.numbers[prefix]].kept = True

    def finish(self, state: SearchState) -> None:
        """Set ``result``, which docs/see_a_decoding.md describes."""
        best, done = state.n_best[0] if state.n_best else None, state.statistics
        if best is not None and best.heads:
            written = by_head(best.tokens, best.heads)
        else:
            written = self._written(best.tokens if best else [])
        ended = TracedCall(range(0), [], done.decoder_seconds - done.draft_seconds, 0.0)
        drafted_s, calls = 0.0, []
        for call, following in pairwise([*self.calls, ended]):
            calls.append(
                {
                    "drafting_ms": MILLI * (call.drafting_s - drafted_s),
                    "verification_ms": MILLI * (following.verifying_s - call.verifying_s),
                    "steps": call.steps,
                    "nodes": [self._row(self.nodes[number]) for number in call.nodes],
                }
            )
            drafted_s = call.drafting_s
        start_s = self.calls[0].verifying_s if self.calls else done.decoder_seconds
        self.result = {"start_ms": MILLI * start_s, "tokens": written, "calls": calls}

    def _row(self, node: Node) -> list[Any]:
        return [node.parent, node.prefix.token, node.step, node.score, node.kept, node.next]

    def _written(self, tokens: list[int]) -> list[list[Any]]:
        """Return for each token: its id, the call that wrote it, how, and its draft step or 0.

        Marks the nodes of the tokens as kept.
        """
        children: dict[tuple[int, int], list[int]] = {}
        for number, node in enumerate(self.nodes):
            children.setdefault((node.parent, node.prefix.token), []).append(number)
        path = [number for number, node in enumerate(self.nodes) if node.parent < 0]
        rows = []
        for length, token in enumerate(tokens, start=1):
            # A prefix that was dropped and evaluated again has several nodes.
            path = [n for parent in path for n in children.get((parent, token), [])]
            for number in path:
                self.nodes[number].kept = True
            call = next(
                (c for c, one in enumerate(self.calls) if one.steps[0] < length <= one.steps[1]),
                None,
            )
            if call is None and length == len(tokens):
                break  # an end symbol at the maximum length
            if call is None:  # CTC alone wrote the text
                rows.append([token, None, UNVERIFIED, 0])
                continue
            drafts = [n for n in path if n in self.calls[call].nodes and self.nodes[n].step > 0]
            step = self.nodes[drafts[0]].step if drafts else 0
            rows.append([token, call, DRAFT if drafts else DECODER, step])
        return rows


def heads_of(running: Sequence[Hypothesis]) -> dict[Prefix, int]:
    """Return the head of each prefix's last token, for hypotheses with unverified drafts."""
    heads = {}
    for hypothesis in running:
        prefixes = reversed([*hypothesis.prefix.ancestors()][: len(hypothesis.heads)])
        heads |= dict(zip(prefixes, hypothesis.heads, strict=False))
    return heads


def by_head(tokens: Sequence[int], heads: Sequence[int]) -> list[list[Any]]:
    """Return the rows of ``_written`` of a text with unverified drafts; ``heads``: of the tokens.

    A call writes the base head's token and the drafts after it.
    """
    rows, call = [], -1
    for token, head in zip(tokens, heads, strict=False):  # an appended end has no head
        call += head == 0
        rows.append([token, call, UNVERIFIED if head else DECODER, head])
    return rows


def preferred(prefix: Prefix) -> list[tuple[int, float]]:
    """Return the next tokens that the search preferred, with their scores; [] if unknown.

    Greedy search: the best token and its log-probability. Beam search: weighted scores.
    """
    if prefix.best is not None:
        return [prefix.best]
    if prefix.candidates is None:
        return []
    pairs = zip(prefix.candidates.tokens, prefix.candidates.gains, strict=True)
    finite = [(token, gain) for token, gain in pairs if math.isfinite(gain)]
    return sorted(finite, key=lambda pair: -pair[1])[:PREFERRED]
