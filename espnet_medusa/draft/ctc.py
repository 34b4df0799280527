"""CTC as a proposer: its greedy hypothesis drafts, behind mismatches too.

Where a prefix stands in the hypothesis is a matter of alignment: behind the beginning of it that
is nearest by edit distance. What follows there is drafted. So a word that CTC has wrong, left out
or put in costs a draft or two, not the rest of the utterance. Over units of its own it is aligned
byte by byte: a word that it spells otherwise has other tokens, and another number of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from espnet_medusa.draft.ctc_hypothesis import (
    NONE,
    CTCHypothesis,
    Retokenization,
    greedy_hypothesis,
    retokenized_hypothesis,
)
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftContext, Proposer
from espnet_medusa.tree.token_tree import upload

EDIT_COST = 3.0  # nats that a place loses for each edit, and for not being the best one
LATER = 1e-3  # nats that a place gains for each place before it, so that ties are none
LEAST = 1e-4  # of the probability is left for tokens that CTC does not name


def advance_rows(rows: torch.Tensor, different: torch.Tensor) -> torch.Tensor:
    """Edits of prefixes that are longer by one symbol.

    Args:
        rows: (R, L + 1) of ``CTCStates`` before that.
        different: (R, L) whether the symbol is another than the hypothesis's at each place.
    """
    longer = rows + 2
    torch.minimum(longer[:, 1:], rows[:, :-1] + different, out=longer[:, 1:])
    return longer.cummin(dim=-1).values


@dataclass(frozen=True)
class CTCStates:
    """Where R prefixes stand.

    Attributes:
        rows: (R, L + 1) edit distances between each and the beginnings of its utterance's
            hypothesis, the empty one first; added is how much longer it is than they are. So a
            symbol that CTC lacks counts 2, another one 1, one that only CTC has nothing, and what
            is left of the recursion is a cumulative minimum.
        utterances: (R,) whose they are.
    """

    rows: torch.Tensor
    utterances: torch.Tensor

    def select(self, rows: torch.Tensor) -> CTCStates:
        return CTCStates(self.rows[rows], self.utterances[rows])

    def join(self, others: CTCStates) -> CTCStates:
        return CTCStates(
            torch.cat([self.rows, others.rows]), torch.cat([self.utterances, others.utterances])
        )


@dataclass(frozen=True)
class Hypotheses:
    """Those of U utterances, filled up to L symbols.

    Attributes:
        symbols: (U, L).
        handicaps: (U, L + 1) what each place loses beside the edits of ``CTCStates``; infinite
            behind the end.
        tokens: (U, L + 1) what the hypothesis goes on with at each place.
        following: (U, L + 1) the place behind that.
        columns: (U, L + 1, K + 1) of the logits, what may follow at each place; V' for all that is
            not named or not drafted.
        shares: (U, L + 1, K + 1) their probabilities.
        width: V'.
        write: ``token -> bytes`` that are its symbols; None: it is the symbol itself.
    """

    symbols: torch.Tensor
    handicaps: torch.Tensor
    tokens: torch.Tensor
    following: torch.Tensor
    columns: torch.Tensor
    shares: torch.Tensor
    width: int
    write: Callable[[int], bytes] | None

    @staticmethod
    def of(
        hypotheses: Sequence[CTCHypothesis],
        vocab_size: int,
        vocabulary: torch.Tensor | None,
        write: Callable[[int], bytes] | None = None,
    ) -> Hypotheses:
        """Side by side.

        Args:
            hypotheses: U.
            vocab_size: Of the decoder.
            vocabulary: (V',) tokens that the logits are of; None: all.
            write: As the attribute.
        """
        symbols = pad_sequence([one.symbols for one in hypotheses], True, NONE)
        tokens = pad_sequence([one.tokens for one in hypotheses], True, NONE)
        shares = pad_sequence([one.probabilities for one in hypotheses], True)
        rest = (1 - shares.sum(dim=-1, keepdim=True)).clamp(min=LEAST)
        device = tokens.device
        drafted = torch.arange(vocab_size, device=device) if vocabulary is None else vocabulary
        width = len(drafted)
        columns = torch.full((vocab_size + 1,), width, device=device)  # the last one for NONE
        columns[drafted] = torch.arange(width, device=device)
        sizes = torch.tensor([len(one.tokens) for one in hypotheses], device=device)
        places = torch.arange(tokens.size(1), device=device)
        handicaps = ((EDIT_COST - LATER) * places).expand(len(sizes), -1)
        return Hypotheses(
            symbols,
            handicaps.masked_fill(places >= sizes[:, None], torch.inf),
            tokens[:, :, 0],
            pad_sequence([one.following for one in hypotheses], True),
            columns[torch.nn.functional.pad(tokens, (0, 1), value=NONE)],
            torch.cat([shares, rest], dim=-1),
            width,
            write,
        )

    def start(self) -> CTCStates:
        """The empty prefix of each utterance."""
        whose = torch.arange(len(self.symbols), device=self.symbols.device)
        return CTCStates(torch.zeros_like(self.handicaps), whose)

    def advance(self, states: CTCStates, tokens: torch.Tensor) -> CTCStates:
        """Prefixes that are longer by one token each, (R,)."""
        rows, symbols = states.rows, self.symbols.index_select(0, states.utterances)
        if self.write is None:
            rows = advance_rows(rows, symbols != tokens[:, None])
        else:
            written = [[*self.write(token)] for token in tokens.tolist()]
            columns = pad_sequence([torch.tensor(one).long() for one in written], False, NONE)
            for column in columns.to(rows.device)[..., None]:
                longer = advance_rows(rows, symbols != column)
                rows = torch.where(column == NONE, rows, longer)
        return CTCStates(rows, states.utterances)

    def scores(self, states: CTCStates) -> torch.Tensor:
        """(R, L + 1) of the places.

        Of several nearest beginnings the longest is best: it lies on the diagonal or behind
        matches.
        """
        handicaps = self.handicaps.index_select(0, states.utterances)
        return -torch.add(handicaps, states.rows, alpha=EDIT_COST)

    def weights(self, states: CTCStates) -> torch.Tensor:
        """How much each place counts: (R, L + 1) distributions."""
        scores = self.scores(states)
        best = scores.argmax(dim=-1, keepdim=True)
        return scores.scatter_add_(1, best, scores.new_full(best.shape, EDIT_COST)).softmax(dim=-1)

    def chain(self, states: CTCStates, depth: int, eos: int) -> torch.Tensor:
        """(R, depth) the hypotheses behind the best places, then end symbols."""
        tokens = self.tokens.masked_fill(self.tokens == NONE, eos)
        starts = states.utterances * tokens.size(1)
        places, steps = self.scores(states).argmax(dim=-1), []
        for _ in range(depth):
            here = starts + places
            steps.append(tokens.take(here))
            places = self.following.take(here)
        return torch.stack(steps, dim=1)

    def log_probs(self, states: CTCStates) -> torch.Tensor:
        """(R, V') of what follows; what CTC does not name shares what it leaves over."""
        shares = self.shares.index_select(0, states.utterances) * self.weights(states)[..., None]
        columns = self.columns.index_select(0, states.utterances)
        found = shares.new_zeros(len(shares), self.width + 1)
        found.scatter_add_(1, columns.flatten(1), shares.flatten(1))
        return found[:, :-1].add(found[:, -1:], alpha=1 / self.width).log()


class CTCProposer(Proposer):
    """The greedy hypothesis of a CTC branch in the decoder's place.

    Args:
        ctc: ``(memory (1, S, D)) -> (1, S', V)`` log-probabilities of the branch.
        vocab_size: Of the decoder.
        eos: The decoder's end symbol.
        blank: The branch's blank.
        vocabulary: As ``Proposer``'s.
        retokenization: Where the branch's units are not the decoder's; its blank is 0 then.
    """

    max_steps = None
    needs_head_input = False

    def __init__(
        self,
        ctc: Callable[[torch.Tensor], torch.Tensor],
        vocab_size: int,
        eos: int,
        blank: int = 0,
        vocabulary: torch.Tensor | None = None,
        retokenization: Retokenization | None = None,
    ):
        self.ctc, self.vocab_size, self.eos, self.blank = ctc, vocab_size, eos, blank
        self.vocabulary, self.retokenization = vocabulary, retokenization
        self.hypotheses: Hypotheses | None = None
        self.known: dict[Prefix, tuple[CTCStates, int]] = {}  # and in which of their rows

    def begin(self, context: DraftContext) -> CTCProposer:
        hypotheses = [
            utterance.ctc_hypothesis or self.greedy_hypothesis(utterance.ctc_input)[0]
            for utterance in context.draft_inputs
        ]
        write = None if self.retokenization is None else self.retokenization.write
        begun = copy.copy(self)
        begun.hypotheses = Hypotheses.of(hypotheses, self.vocab_size, self.vocabulary, write)
        states = begun.hypotheses.start()
        begun.known = {root: (states, row) for row, root in enumerate(context.roots)}
        return begun

    def greedy_hypothesis(self, memory: torch.Tensor) -> tuple[CTCHypothesis, torch.Tensor]:
        """What the branch says of an utterance (S, D), and its log-probabilities (S', V')."""
        log_probs = self.ctc(memory[None])[0]
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

    def chain(self, states: CTCStates, depth: int) -> torch.Tensor | None:
        # Of a smaller vocabulary something else may have to be drafted.
        return self.hypotheses.chain(states, depth, self.eos) if self.vocabulary is None else None

    def keep(self, running: Sequence[Prefix]) -> None:
        living = set()
        for prefix in running:
            for ancestor in prefix.ancestors():
                if ancestor in living:
                    break
                living.add(ancestor)
        self.known = {prefix: place for prefix, place in self.known.items() if prefix in living}
