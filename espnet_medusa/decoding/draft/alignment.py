"""Alignment of prefixes with known hypotheses, such as a text or CTC's greedy hypothesis.

The edit distance aligns a prefix with the hypothesis. The place after the part of the hypothesis
that is nearest to the prefix is where a draft continues. If the hypothesis has other units than the
decoder, bytes are aligned instead of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from espnet_medusa.decoding.tree.proposer import States

NONE = -1  # no token
EDIT_COST = 3.0  # nats per edit; also added to the score of the best place in the hypothesis
LATER = 1e-3  # in nats, bonus per symbol before a place: of equally good places, the last wins
LEAST = 1e-4  # minimum total probability of all tokens that a hypothesis does not have


class DraftHypothesis(NamedTuple):
    """A hypothesis of L symbols (tokens of the decoder, or bytes) and of M - 1 tokens."""

    symbols: torch.Tensor  # (L,) token ids, or bytes
    # (M, K) tokens at M positions, padded with ``NONE``: the first column is the hypothesis, the
    # others are alternatives. The last position has the end token.
    tokens: torch.Tensor
    probabilities: torch.Tensor  # (M, K) of these tokens
    following: torch.Tensor  # (M,) the position after the token at each position
    # (2, L + 1) first and last position after the first 0 to L symbols. Between them are tokens
    # that alignment skips, such as timestamps. None: positions are the places 0 to L.
    positions: torch.Tensor | None = None

    def path(self) -> list[tuple[int, float]]:
        """Return the hypothesis's tokens and log-probabilities, with the end token.

        The list ends early if no decoder token starts at a position.
        """
        best, log_probs = self.tokens[:, 0].tolist(), self.probabilities[:, 0].log().tolist()
        path, place, following = [], 0, self.following.tolist()
        while best[place] != NONE:
            path.append((best[place], log_probs[place]))
            if place == len(best) - 1:
                break
            place = following[place]
        return path


def advance_rows(rows: torch.Tensor, different: torch.Tensor) -> torch.Tensor:
    """Return ``AlignedStates.rows`` (R, L + 1) after appending a symbol to each prefix.

    ``different`` (R, L): whether the symbol differs from each symbol of the hypothesis.
    """
    longer = rows + 2
    torch.minimum(longer[:, 1:], rows[:, :-1] + different, out=longer[:, 1:])
    return longer.cummin(dim=-1).values


def place_costs(places: torch.Tensor) -> torch.Tensor:
    """Return the costs of places in nats, in addition to ``EDIT_COST`` per unit of a row."""
    return (EDIT_COST - LATER) * places


def best_place(hypothesis: Sequence[int], prefix: Sequence[int]) -> int:
    """Return the number of tokens of the hypothesis that the prefix has reached."""
    symbols, rows = torch.tensor([hypothesis]).long(), torch.zeros(1, len(hypothesis) + 1)
    for token in prefix:
        rows = advance_rows(rows, symbols != token)
    costs = place_costs(torch.arange(rows.size(1)))
    return int(torch.add(costs, rows[0], alpha=EDIT_COST).argmin())


@dataclass(frozen=True)
class AlignedStates(States):
    """Alignment of R prefixes with their utterances' hypotheses."""

    # (R, L + 1) edit distances between the prefix and the hypothesis's first 0 to L symbols. An
    # insertion costs 2, a substitution 1 and a deletion 0, so a cumulative minimum computes them.
    # ``Hypotheses.place_costs`` adds n edits at place n, which ranks places as if each edit cost 1.
    rows: torch.Tensor
    utterances: torch.Tensor  # (R,) index of the utterance
    last: torch.Tensor  # (R,) last aligned symbol; NONE at the prompt
    skipped: torch.Tensor  # (R,) number of tokens at the end that alignment skips


@dataclass(frozen=True)
class Hypotheses:
    """Hypotheses of U utterances, padded to L symbols and M positions; place n is after n symbols.

    ``width`` is the number of logit columns, V'.
    """

    symbols: torch.Tensor  # (U, L)
    place_costs: torch.Tensor  # (U, L + 1) in nats; infinite after the end of a hypothesis
    positions: torch.Tensor | None  # (U, 2, L + 1) as in ``DraftHypothesis``
    tokens: torch.Tensor  # (U, M) the hypothesis's token at each position
    following: torch.Tensor  # (U, M) the position after that token
    # (U, M, K + 1) logit columns of tokens that may follow; V' for all other tokens together.
    columns: torch.Tensor
    probabilities: torch.Tensor  # (U, M, K + 1) of these tokens
    width: int
    write: Callable[[int], bytes] | None  # token to symbols (bytes); None: tokens are symbols
    skipped: range  # ids of tokens that alignment skips

    @staticmethod
    def of(
        hypotheses: Sequence[DraftHypothesis],
        vocab_size: int,
        vocabulary: torch.Tensor | None,
        write: Callable[[int], bytes] | None = None,
        skipped: range = range(0),
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
        sizes = torch.tensor([len(h.symbols) + 1 for h in hypotheses], device=device)
        places = torch.arange(symbols.size(1) + 1, device=device)
        costs = place_costs(places).expand(len(sizes), -1)
        positions = None
        if any(h.positions is not None for h in hypotheses):
            rows = [pad_sequence([h.positions[row] for h in hypotheses], True) for row in (0, 1)]
            positions = torch.stack(rows, dim=1)
        return Hypotheses(
            symbols,
            costs.masked_fill(places >= sizes[:, None], torch.inf),
            positions,
            tokens[:, :, 0],
            pad_sequence([h.following for h in hypotheses], True),
            columns[torch.nn.functional.pad(tokens, (0, 1), value=NONE)],
            torch.cat([probabilities, rest], dim=-1),
            width,
            write,
            skipped,
        )

    def start(self) -> AlignedStates:
        """Return the states of the U prompts."""
        rows = torch.zeros_like(self.place_costs)
        utterances = torch.arange(len(rows), device=rows.device)
        last = torch.full_like(utterances, NONE)
        return AlignedStates(rows, utterances, last, torch.zeros_like(utterances))

    def advance(self, states: AlignedStates, tokens: torch.Tensor) -> AlignedStates:
        """Return the states after appending a token (R,) to each prefix."""
        rows, symbols = states.rows, self.symbols.index_select(0, states.utterances)
        last, skipped = tokens, states.skipped
        if self.write is None:
            rows = advance_rows(rows, symbols != tokens[:, None])
        else:
            written = [[*self.write(token)] for token in tokens.tolist()]
            columns = pad_sequence([torch.tensor(row).long() for row in written], False, NONE)
            last = states.last
            for column in columns.to(rows.device):
                here, none = column[:, None], column == NONE
                rows = torch.where(none[:, None], rows, advance_rows(rows, symbols != here))
                last = torch.where(none, last, column)
        if self.skipped:
            skip = (tokens >= self.skipped.start) & (tokens < self.skipped.stop)
            rows = torch.where(skip[:, None], states.rows, rows)
            last, skipped = torch.where(skip, states.last, last), (skipped + 1) * skip
        return AlignedStates(rows, states.utterances, last, skipped)

    def scores(self, states: AlignedStates) -> torch.Tensor:
        """Return the scores (R, L + 1) of the places."""
        costs = self.place_costs.index_select(0, states.utterances)
        return -torch.add(costs, states.rows, alpha=EDIT_COST)

    def weights(self, states: AlignedStates) -> torch.Tensor:
        """Return distributions (R, L + 1) over the places."""
        scores = self.scores(states)
        best = scores.argmax(dim=-1, keepdim=True)
        return scores.scatter_add_(1, best, scores.new_full(best.shape, EDIT_COST)).softmax(dim=-1)

    def matched(self, states: AlignedStates) -> torch.Tensor:
        """Return whether each prefix (R,) is empty or ends with the symbol at its best place."""
        places = self.scores(states).argmax(dim=-1)
        before = torch.nn.functional.pad(self.symbols, (1, 0), value=NONE)
        return before[states.utterances, places] == states.last

    def chain(self, states: AlignedStates, depth: int, eos: int) -> torch.Tensor:
        """Return the hypothesis's tokens (R, depth) after the best places, padded with ``eos``."""
        tokens = self.tokens.masked_fill(self.tokens == NONE, eos)
        starts = states.utterances * tokens.size(1)
        places, steps = self.scores(states).argmax(dim=-1, keepdim=True), []
        places = self._positions(states, places)[:, 0]
        for _ in range(depth):
            here = starts + places
            steps.append(tokens.take(here))
            places = self.following.take(here)
        return torch.stack(steps, dim=1)

    def log_probs(self, states: AlignedStates) -> torch.Tensor:
        """Return log-probabilities (R, V'); all V' tokens share the remaining probability."""
        of_rows = self.probabilities, self.columns
        probabilities, columns = (part.index_select(0, states.utterances) for part in of_rows)
        if self.positions is not None:
            places = torch.arange(states.rows.size(1), device=states.rows.device)
            here = self._positions(states, places.expand_as(states.rows))[..., None]
            here = here.expand(-1, -1, columns.size(2))
            probabilities, columns = probabilities.gather(1, here), columns.gather(1, here)
        probabilities = probabilities * self.weights(states)[..., None]
        sums = probabilities.new_zeros(len(probabilities), self.width + 1)
        sums.scatter_add_(1, columns.flatten(1), probabilities.flatten(1))
        return sums[:, :-1].add(sums[:, -1:], alpha=1 / self.width).log()

    def _positions(self, states: AlignedStates, places: torch.Tensor) -> torch.Tensor:
        """Return the positions (R, n) of places (R, n), after tokens that were skipped there."""
        if self.positions is None:
            return places
        first, last = self.positions[states.utterances].unbind(1)
        first, last = first.gather(1, places), last.gather(1, places)
        return torch.minimum(first + states.skipped[:, None], last)
