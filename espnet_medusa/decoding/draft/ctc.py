"""A proposer that drafts CTC's greedy hypothesis, also after mismatches.

The edit distance aligns a prefix with the hypothesis. The draft continues after the part of the
hypothesis that is nearest to the prefix. So one or two drafts are rejected after a CTC error, not
all drafts of the utterance. If CTC has its own units, bytes are aligned instead of tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch.nn.utils.rnn import pad_sequence

from espnet_medusa.decoding.draft.ctc_hypothesis import (
    NONE,
    CTCHypothesis,
    Retokenization,
    greedy_hypothesis,
    retokenized_hypothesis,
)
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import DraftContext, Proposer, States
from espnet_medusa.decoding.tree.token_tree import upload

EDIT_COST = 3.0  # nats per edit; also added to the score of the best place in the hypothesis
LATER = 1e-3  # in nats, bonus per symbol before a place: of equally good places, the last wins
LEAST = 1e-4  # minimum total probability of all tokens without a CTC probability


def advance_rows(rows: torch.Tensor, different: torch.Tensor) -> torch.Tensor:
    """Return ``CTCStates.rows`` (R, L + 1) after appending a symbol to each prefix.

    ``different`` (R, L): whether the symbol differs from each symbol of the hypothesis.
    """
    longer = rows + 2
    torch.minimum(longer[:, 1:], rows[:, :-1] + different, out=longer[:, 1:])
    return longer.cummin(dim=-1).values


@dataclass(frozen=True)
class CTCStates(States):
    """Alignment of R prefixes with their utterances' hypotheses."""

    # (R, L + 1) edit distances between the prefix and the hypothesis's first 0 to L symbols. An
    # insertion costs 2, a substitution 1 and a deletion 0, so a cumulative minimum computes them.
    # ``Hypotheses.place_costs`` adds n edits at place n, which ranks places as if each edit cost 1.
    rows: torch.Tensor
    utterances: torch.Tensor  # (R,) index of the utterance


@dataclass(frozen=True)
class Hypotheses:
    """CTC hypotheses of U utterances, padded to L symbols; place n is after the first n."""

    symbols: torch.Tensor  # (U, L)
    place_costs: torch.Tensor  # (U, L + 1) in nats; infinite after the end of a hypothesis
    tokens: torch.Tensor  # (U, L + 1) the hypothesis's next token at each place
    following: torch.Tensor  # (U, L + 1) the place after that token
    # (U, L + 1, K + 1) logit columns of tokens that may follow; V' for all other tokens together.
    columns: torch.Tensor
    probabilities: torch.Tensor  # (U, L + 1, K + 1) of these tokens
    width: int  # V'
    write: Callable[[int], bytes] | None  # token to symbols (bytes); None: tokens are symbols

    @staticmethod
    def of(
        hypotheses: Sequence[CTCHypothesis],
        vocab_size: int,
        vocabulary: torch.Tensor | None,
        write: Callable[[int], bytes] | None = None,
    ) -> Hypotheses:
        """Pad the hypotheses of U utterances; ``vocabulary`` as in ``Proposer``."""
        symbols = pad_sequence([h.symbols for h in hypotheses], True, NONE)
        tokens = pad_sequence([h.tokens for h in hypotheses], True, NONE)
        probabilities = pad_sequence([h.probabilities for h in hypotheses], True)
        rest = (1 - probabilities.sum(dim=-1, keepdim=True)).clamp(min=LEAST)
        device = tokens.device
        drafted = torch.arange(vocab_size, device=device) if vocabulary is None else vocabulary
        width = len(drafted)
        columns = torch.full((vocab_size + 1,), width, device=device)  # the last one for NONE
        columns[drafted] = torch.arange(width, device=device)
        sizes = torch.tensor([len(h.tokens) for h in hypotheses], device=device)
        places = torch.arange(tokens.size(1), device=device)
        costs = ((EDIT_COST - LATER) * places).expand(len(sizes), -1)
        return Hypotheses(
            symbols,
            costs.masked_fill(places >= sizes[:, None], torch.inf),
            tokens[:, :, 0],
            pad_sequence([h.following for h in hypotheses], True),
            columns[torch.nn.functional.pad(tokens, (0, 1), value=NONE)],
            torch.cat([probabilities, rest], dim=-1),
            width,
            write,
        )

    def advance(self, states: CTCStates, tokens: torch.Tensor) -> CTCStates:
        """Return the states after appending a token (R,) to each prefix."""
        rows, symbols = states.rows, self.symbols.index_select(0, states.utterances)
        if self.write is None:
            rows = advance_rows(rows, symbols != tokens[:, None])
        else:
            written = [[*self.write(token)] for token in tokens.tolist()]
            columns = pad_sequence([torch.tensor(row).long() for row in written], False, NONE)
            for column in columns.to(rows.device)[..., None]:
                rows = torch.where(column == NONE, rows, advance_rows(rows, symbols != column))
        return CTCStates(rows, states.utterances)

    def scores(self, states: CTCStates) -> torch.Tensor:
        """Return the scores (R, L + 1) of the places."""
        costs = self.place_costs.index_select(0, states.utterances)
        return -torch.add(costs, states.rows, alpha=EDIT_COST)

    def weights(self, states: CTCStates) -> torch.Tensor:
        """Return distributions (R, L + 1) over the places."""
        scores = self.scores(states)
        best = scores.argmax(dim=-1, keepdim=True)
        return scores.scatter_add_(1, best, scores.new_full(best.shape, EDIT_COST)).softmax(dim=-1)

    def chain(self, states: CTCStates, depth: int, eos: int) -> torch.Tensor:
        """Return the hypothesis's tokens (R, depth) after the best places, padded with ``eos``."""
        tokens = self.tokens.masked_fill(self.tokens == NONE, eos)
        starts = states.utterances * tokens.size(1)
        places, steps = self.scores(states).argmax(dim=-1), []
        for _ in range(depth):
            here = starts + places
            steps.append(tokens.take(here))
            places = self.following.take(here)
        return torch.stack(steps, dim=1)

    def log_probs(self, states: CTCStates) -> torch.Tensor:
        """Return log-probabilities (R, V'); all V' tokens share the remaining probability."""
        probabilities = self.probabilities.index_select(0, states.utterances)
        probabilities = probabilities * self.weights(states)[..., None]
        columns = self.columns.index_select(0, states.utterances)
        sums = probabilities.new_zeros(len(probabilities), self.width + 1)
        sums.scatter_add_(1, columns.flatten(1), probabilities.flatten(1))
        return sums[:, :-1].add(sums[:, -1:], alpha=1 / self.width).log()


@dataclass(eq=False)
class CTCProposer(Proposer):
    """A proposer that drafts the greedy hypothesis of a CTC branch."""

    needs_head_input = False

    # Log-probabilities of the branch, encoder output (1, S, D) to (1, S', V).
    ctc: Callable[[torch.Tensor], torch.Tensor]
    vocab_size: int  # V
    eos: int
    blank: int = 0
    vocabulary: torch.Tensor | None = None
    # For a branch with its own units and blank 0; None: units are tokens.
    retokenization: Retokenization | None = None

    # Set by ``begin``; ``known`` has each prefix's states and its row in them.
    hypotheses: Hypotheses | None = field(init=False, default=None)
    known: dict[Prefix, tuple[CTCStates, int]] = field(init=False, default_factory=dict)

    def begin(self, context: DraftContext) -> CTCProposer:
        hypotheses = [
            utterance.ctc_hypothesis or self.greedy_hypothesis(utterance.ctc_input)[0]
            for utterance in context.draft_inputs
        ]
        write = None if self.retokenization is None else self.retokenization.write
        begun = copy.copy(self)
        begun.hypotheses = Hypotheses.of(hypotheses, self.vocab_size, self.vocabulary, write)
        rows = torch.zeros_like(begun.hypotheses.place_costs)
        states = CTCStates(rows, torch.arange(len(rows), device=rows.device))
        begun.known = {root: (states, row) for row, root in enumerate(context.roots)}
        return begun

    def greedy_hypothesis(self, encoder_out: torch.Tensor) -> tuple[CTCHypothesis, torch.Tensor]:
        """Return the hypothesis of an utterance (S, D), and log-probabilities (S', V)."""
        log_probs = self.ctc(encoder_out[None])[0]
        if self.retokenization is None:
            return greedy_hypothesis(log_probs, self.blank, self.eos), log_probs
        return retokenized_hypothesis(log_probs, self.eos, self.retokenization), log_probs

    def start(self, prefixes: Sequence[Prefix]) -> CTCStates:
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

    def _recall(self, prefixes: Sequence[Prefix]) -> CTCStates:
        places = [self.known[prefix] for prefix in prefixes]
        return CTCStates(
            torch.stack([states.rows[row] for states, row in places]),
            torch.stack([states.utterances[row] for states, row in places]),
        )

    def advance(self, states: CTCStates, tokens: torch.Tensor) -> CTCStates:
        return self.hypotheses.advance(states, tokens)

    def logits(self, states: CTCStates) -> torch.Tensor:
        return self.hypotheses.log_probs(states)

    def chain(self, states, depth, min_log_prob, tokens=None, restrict=None) -> torch.Tensor | None:
        # With a smaller draft vocabulary, the best drafts may be different tokens.
        if self.vocabulary is not None or min_log_prob > -math.inf or restrict is not None:
            return None
        return self.hypotheses.chain(self.append(states, tokens), depth, self.eos)

    def keep(self, running: Sequence[Prefix]) -> None:
        living = set()
        for prefix in running:
            living.update(takewhile(lambda p: p not in living, prefix.ancestors()))
        self.known = {prefix: place for prefix, place in self.known.items() if prefix in living}
