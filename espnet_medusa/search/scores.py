"""Scores of the tokens that may follow prefixes: the decoder's and those of other scorers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from espnet_medusa.constraints import Constraints
from espnet_medusa.prefix import Prefix
from espnet_medusa.search.ctc_prefix import CTCPrefix

DECODER, CTC = "decoder", "ctc"
CANDIDATES = "candidates"
PRE_BEAM_RATIO = 1.5  # ESPnet's default: candidates per hypothesis that CTC looks at, over the beam


class Candidates(NamedTuple):
    """Tokens that may follow a prefix, best first by the full scorers.

    Attributes:
        tokens: M ids; where CTC scores, the end symbol stands last.
        gains: Weighted sum of all scorers.
        parts: Per scorer, what it gives to each token.
    """

    tokens: list[int]
    gains: list[float]
    parts: list[list[float]]


@dataclass
class UtteranceScorers:
    """An utterance's scorers beside the decoder.

    Attributes:
        full: ESPnet's scorers over the whole vocabulary (language model, n-gram, length bonus).
        memory: (S, D) encoder output, which they are given.
        prompt: (P,) tokens of the prompt.
        ctc: Scores candidates only.
        min_length: No end symbol before so many tokens (greedy search; beam search drops what
            ended too early).
    """

    full: Mapping[str, Any] = field(default_factory=dict)
    memory: torch.Tensor | None = None
    prompt: torch.Tensor | None = None
    ctc: CTCPrefix | None = None
    min_length: int = 0

    def full_scores(self, name: str, prefixes: Sequence[Prefix]) -> torch.Tensor:
        """(R, V) of one scorer, prefixes being of one length; each is scored once in its life."""
        missing = [prefix for prefix in prefixes if name not in prefix.memo]
        if missing:
            states = [self._state(name, prefix) for prefix in missing]
            behind = torch.tensor(
                [prefix.tokens() for prefix in missing],
                dtype=self.prompt.dtype,
                device=self.prompt.device,
            )
            sequences = torch.cat([self.prompt.expand(len(missing), -1), behind], dim=1)
            memory = self.memory.expand(len(missing), *self.memory.shape)
            scores, states = self.full[name].batch_score(sequences, states, memory)
            for row, prefix in enumerate(missing):
                state = self.full[name].select_state(states, row)
                prefix.memo[name] = (scores[row], state)
        return torch.stack([prefix.memo[name][0] for prefix in prefixes])

    def _state(self, name: str, prefix: Prefix) -> Any:
        if prefix.parent is None:
            return self.full[name].batch_init_state(self.memory)
        if name not in prefix.parent.memo:
            self.full_scores(name, [prefix.parent])
        return prefix.parent.memo[name][1]

    def settle(self, prefix: Prefix) -> None:
        """The step behind a prefix is taken: keep what its children need, free the rest.

        Prefixes of a beam have one length, so nobody needs their parents' states any more.
        """
        prefix.logits = None
        prefix.memo.pop(CANDIDATES)
        for name in self.full:
            prefix.memo[name] = (None, prefix.memo[name][1])
        if prefix.parent is not None:
            prefix.parent.memo.clear()


class Request(NamedTuple):
    """Prefixes of one length of one utterance."""

    scorers: UtteranceScorers
    prefixes: list[Prefix]


@dataclass(frozen=True)
class Scoring:
    """How scores come about; the same for all utterances.

    Attributes:
        weights: Of the scorers, the decoder's among them.
        eos: End symbol.
        constraints: Which tokens may come where.
        constrain_logits: Greedy search constrains logits, beam search log-probabilities, each as
            transformers does.
    """

    weights: Mapping[str, float]
    eos: int
    constraints: Constraints
    constrain_logits: bool = False

    @property
    def names(self) -> list[str]:
        """Scorers in the order of ``Candidates.parts``."""
        return [*self.weights]

    def log_probs(self, requests: Sequence[Request], logits: torch.Tensor) -> torch.Tensor:
        """(R, V) constrained log-probabilities of (R, V) logits."""
        if self.constrain_logits:
            return self.constrain(requests, logits).log_softmax(dim=-1)
        return self.constrain(requests, logits.float().log_softmax(dim=-1))

    def constrain(self, requests: Sequence[Request], scores: torch.Tensor) -> torch.Tensor:
        """(R, V) scores with what must not come at -inf."""
        scores = scores.float()
        least = [request.scorers.min_length for request in requests for _ in request.prefixes]
        if self.constraints.is_empty and not any(least):
            return scores
        lengths = [prefix.length for request in requests for prefix in request.prefixes]
        return self.constraints.apply(
            scores,
            torch.tensor(lengths, device=scores.device),
            torch.tensor(least, device=scores.device),
        )

    def find_candidates(self, requests: Sequence[Request], width: int) -> None:
        """Keep the candidates of evaluated prefixes in their memo."""
        requests = [
            Request(request.scorers, missing)
            for request in requests
            if (missing := [p for p in request.prefixes if CANDIDATES not in p.memo])
        ]
        prefixes = [prefix for request in requests for prefix in request.prefixes]
        if prefixes:
            logits = torch.stack([prefix.logits for prefix in prefixes])
            found = self.candidates(requests, self.log_probs(requests, logits), width)
            for prefix, candidates in zip(prefixes, found, strict=True):
                prefix.memo[CANDIDATES] = candidates

    def candidates(
        self,
        requests: Sequence[Request],
        log_probs: torch.Tensor,
        width: int,
        left_out: frozenset[str] = frozenset(),
    ) -> list[Candidates]:
        """The best tokens behind each prefix.

        Args:
            requests: Prefixes of several utterances, R in all.
            log_probs: (R, V) of the decoder or of what stands in for it.
            width: Beam size.
            left_out: Scorers that shall not be asked.

        Returns:
            R lists of candidates.
        """
        names = [name for name in self.names if name not in left_out]
        full = {DECODER: log_probs}
        for name in names:
            if name not in (DECODER, CTC):
                full[name] = torch.cat([r.scorers.full_scores(name, r.prefixes) for r in requests])
        weighted = sum(self.weights[name] * full[name] for name in full)
        count = int(PRE_BEAM_RATIO * width) if CTC in names else width
        gains, tokens = weighted.topk(min(count, weighted.size(1)), dim=-1)
        if CTC in names:
            gains, tokens = self._append_end(gains, tokens, weighted)
        gains = gains.double()
        parts = {name: scores.gather(-1, tokens).double() for name, scores in full.items()}
        if CTC in names:
            sizes = [len(request.prefixes) for request in requests]
            parts[CTC] = torch.cat(
                [
                    request.scorers.ctc.score(request.prefixes, rows)
                    for request, rows in zip(requests, tokens.split(sizes), strict=True)
                ]
            )
            gains = gains + self.weights[CTC] * parts[CTC]
        columns = [parts[name] for name in names]
        table = torch.stack([tokens.double(), gains, *columns], dim=1).tolist()
        return [Candidates([int(token) for token in row[0]], row[1], row[2:]) for row in table]

    def _append_end(
        self, gains: torch.Tensor, tokens: torch.Tensor, weighted: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """CTC scores the end symbol whatever its rank; there once, at the end."""
        gains = gains.masked_fill(tokens == self.eos, -torch.inf)
        gains = torch.cat([gains, weighted[:, self.eos, None]], dim=1)
        end = torch.full_like(tokens[:, :1], self.eos)
        return gains, torch.cat([tokens, end], dim=1)
