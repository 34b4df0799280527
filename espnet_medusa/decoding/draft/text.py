"""Proposers that draft a known hypothesis, also after mismatches: a given text, or CTC's.

After an error of the hypothesis, one or two drafts are rejected, not all drafts of the utterance.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch

from espnet_medusa.decoding.draft.alignment import AlignedStates, DraftHypothesis, Hypotheses
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import DraftContext, Proposer
from espnet_medusa.decoding.tree.token_tree import upload

SURE = 0.99  # probability of a given text's token at its place


@dataclass(eq=False)
class HypothesisProposer(Proposer):
    """Drafts a hypothesis per utterance; subclasses call ``begin_with`` in ``begin``."""

    needs_head_input = False

    # Set by ``begin_with``; ``known`` has each prefix's states and its row in them.
    hypotheses: Hypotheses | None = field(init=False, default=None)
    known: dict[Prefix, tuple[AlignedStates, int]] = field(init=False, default_factory=dict)

    def begin_with(self, hypotheses: Hypotheses, roots: Sequence[Prefix]) -> HypothesisProposer:
        """Return the proposer of one batch."""
        begun = copy.copy(self)
        begun.hypotheses, states = hypotheses, hypotheses.start()
        begun.known = {root: (states, row) for row, root in enumerate(roots)}
        return begun

    def start(self, prefixes: Sequence[Prefix]) -> AlignedStates:
        generations, missing = [], self._unknown(prefixes)
        while missing:
            generations.append(missing)
            missing = self._unknown(prefix.parent for prefix in missing)
        while generations:
            missing = self._unknown(generations.pop())
            states = self._recall([prefix.parent for prefix in missing])
            tokens = [prefix.token for prefix in missing]
            states = self.advance(states, upload(tokens, states.rows.device))
            self.known |= {prefix: (states, row) for row, prefix in enumerate(missing)}
        return self._recall(prefixes)

    def _unknown(self, prefixes: Iterable[Prefix]) -> list[Prefix]:
        return [prefix for prefix in dict.fromkeys(prefixes) if prefix not in self.known]

    def _recall(self, prefixes: Sequence[Prefix]) -> AlignedStates:
        places = [self.known[prefix] for prefix in prefixes]
        if len(places) == 1:
            [(states, row)] = places
            return AlignedStates(*(part[row : row + 1] for part in vars(states).values()))
        rows = ([part[row] for part in vars(states).values()] for states, row in places)
        return AlignedStates(*map(torch.stack, zip(*rows, strict=True)))

    def advance(self, states: AlignedStates, tokens: torch.Tensor) -> AlignedStates:
        return self.hypotheses.advance(states, tokens)

    def logits(self, states: AlignedStates) -> torch.Tensor:
        return self.hypotheses.log_probs(states)

    def goes_on(self, states: AlignedStates) -> torch.Tensor:
        """Return whether each prefix (R,) still follows its hypothesis."""
        return self.hypotheses.matched(states)

    def keep(self, running: Sequence[Prefix]) -> None:
        living = set()
        for prefix in running:
            living.update(takewhile(lambda p: p not in living, prefix.ancestors()))
        self.known = {prefix: place for prefix, place in self.known.items() if prefix in living}


@dataclass(eq=False)
class TextProposer(HypothesisProposer):
    """A proposer that drafts ``DraftInput.text``; utterances without a text have no drafts."""

    vocab_size: int  # V
    eos: int
    vocabulary: torch.Tensor | None = None
    times: range = range(0)  # ids of timestamps, which alignment skips
    texts: dict[Prefix, bool] = field(init=False, default_factory=dict)  # by root: has a text

    def begin(self, context: DraftContext) -> HypothesisProposer:
        texts = [draft_input.text for draft_input in context.draft_inputs]
        rows = [text_hypothesis(text or (), self.eos, self.times, context.device) for text in texts]
        parts = self.vocab_size, self.vocabulary, None, self.times
        begun = self.begin_with(Hypotheses.of(rows, *parts), context.roots)
        begun.texts = {
            root: text is not None for root, text in zip(context.roots, texts, strict=True)
        }
        return begun

    def drafts(self, root: Prefix) -> bool:
        return self.texts[root]

    def goes_on(self, states: AlignedStates) -> torch.Tensor:
        matched = super().goes_on(states)
        if all(self.texts.values()):
            return matched
        has_text = upload([*self.texts.values()], matched.device, torch.bool)
        return matched & has_text[states.utterances]

    def chain(self, states, depth, min_log_prob, tokens=None, restrict=None) -> torch.Tensor | None:
        if restrict is not None:
            return None
        return self.hypotheses.chain(self.append(states, tokens), depth, self.eos)


def text_hypothesis(
    text: Sequence[int], eos: int, times: range, device: torch.device | None = None
) -> DraftHypothesis:
    """Return the hypothesis of a text's tokens; its timestamps are drafted, but not aligned."""
    untimed = [place for place, token in enumerate(text) if token not in times]
    tokens = torch.tensor([*text, eos], device=device)[:, None]
    symbols, positions = tokens[:-1, 0], None
    if times:  # if there may be timestamps, all hypotheses of a batch have positions
        after = [0, *(place + 1 for place in untimed)], [*untimed, len(text)]
        positions = torch.tensor(after, device=device)
        symbols = symbols[torch.tensor(untimed, dtype=torch.long, device=device)]
    return DraftHypothesis(
        symbols,
        tokens,
        torch.full(tokens.shape, SURE, device=device),
        (torch.arange(len(tokens), device=device) + 1).clamp(max=len(text)),
        positions,
    )
