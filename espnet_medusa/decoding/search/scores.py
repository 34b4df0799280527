"""Scores of the next tokens of prefixes: the decoder's and those of other scorers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from espnet_medusa.data.threads import lock_of
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.ctc_prefix import CTCPrefix
from espnet_medusa.decoding.search.ctc_window import Window
from espnet_medusa.decoding.tree.best_tokens import Restriction, TopTokens, top_scores, top_tokens
from espnet_medusa.decoding.tree.prefix import Candidates, Prefix
from espnet_medusa.decoding.tree.token_tree import upload

DECODER, CTC = "decoder", "ctc"
PRE_BEAM_RATIO = 1.5  # ESPnet's default ratio of CTC candidates to beam size


@dataclass(frozen=True)
class Scorers:
    """The scorers of beam search."""

    weights: Mapping[str, float] = field(default_factory=lambda: {DECODER: 1.0})  # 0: not used
    # ESPnet's full scorers except the decoder.
    full: Mapping[str, Any] = field(default_factory=dict)
    # ``(encoder output (1, S, D)) -> (1, S, V)`` log-probabilities of the CTC branch, or None.
    ctc: Callable[[torch.Tensor], torch.Tensor] | None = None
    # Whether CTC and end detection count all prompt tokens as output (ESPnet 202511) or one.
    prompt_counts: bool = True
    ctc_window_margin: int = 0  # of CTC's prefix scores, in encoder frames; 0: all frames

    @property
    def names(self) -> list[str]:
        """Names of all scorers, the decoder's first and CTC's last."""
        return [DECODER, *self.full, *([CTC] if self.ctc is not None else [])]

    @property
    def active_weights(self) -> dict[str, float]:
        return {name: self.weights[name] for name in self.names if self.weights.get(name, 0) != 0}


DECODER_ALONE = Scorers()


@dataclass
class UtteranceScorers:
    """An utterance's scorers other than the decoder."""

    # ESPnet's scorers over the whole vocabulary (language model, n-gram, length bonus).
    full: Mapping[str, Any] = field(default_factory=dict)
    encoder_out: torch.Tensor | None = None  # (S, D) encoder output, for these scorers
    prompt: torch.Tensor | None = None  # (P,)
    ctc: CTCPrefix | None = None  # scores only the best tokens of the other scorers
    # Greedy search: minimum number of tokens before an end symbol. Beam search drops short
    # hypotheses instead.
    min_length: int = 0

    def full_scores(self, name: str, prefixes: Sequence[Prefix]) -> torch.Tensor:
        """Return cached scores (R, V) of one scorer; all R prefixes have the same length."""
        missing = [prefix for prefix in prefixes if name not in prefix.scorers]
        if missing:
            states = [self._state(name, prefix) for prefix in missing]
            tokens = self.prompt.new_tensor([prefix.tokens() for prefix in missing])
            sequences = torch.cat([self.prompt.expand(len(missing), -1), tokens], dim=1)
            encoder_out = self.encoder_out.expand(len(missing), *self.encoder_out.shape)
            with lock_of(self.full[name]):
                scores, states = self.full[name].batch_score(sequences, states, encoder_out)
            for row, prefix in enumerate(missing):
                prefix.scorers[name] = scores[row], self.full[name].select_state(states, row)
        return torch.stack([prefix.scorers[name][0] for prefix in prefixes])

    def _state(self, name: str, prefix: Prefix) -> Any:
        if prefix.parent is None:
            return self.full[name].batch_init_state(self.encoder_out)
        if name not in prefix.parent.scorers:
            self.full_scores(name, [prefix.parent])
        return prefix.parent.scorers[name][1]

    def window(self, prefixes: Sequence[Prefix], before: Window | None) -> Window | None:
        """Return the window of CTC's scores; arguments as for ``CTCPrefix.window``."""
        return None if self.ctc is None else self.ctc.window(prefixes, before)

    def free_scores(self, prefix: Prefix) -> None:
        """Free the scores of a prefix after its step, and all scores and states of its parent.

        Its own scorer states remain, because its children need them.
        """
        prefix.logits = prefix.candidates = None
        for name in self.full:
            prefix.scorers[name] = (None, prefix.scorers[name][1])
        if prefix.parent is not None:
            prefix.parent.forget_scores()


class Request(NamedTuple):
    """Prefixes of an utterance; other scorers need equal lengths."""

    scorers: UtteranceScorers
    prefixes: list[Prefix]
    window: Window | None = None  # of CTC's scores; None: all frames

    def lacks_candidates(self, prefix: Prefix) -> bool:
        """Return whether candidates are unknown, or their CTC scores are of another window."""
        return prefix.candidates is None or prefix.candidates.window is not self.window


@dataclass(frozen=True)
class Scoring:
    """Weights and constraints of scores, the same for all utterances."""

    weights: Mapping[str, float]  # by scorer, including the decoder
    eos: int  # end symbol
    constraints: Constraints  # allowed tokens
    # As in transformers, greedy search constrains logits and beam search log-probabilities.
    constrain_logits: bool = False
    # (V',) token ids of the logits' columns, for a draft vocabulary; None: all.
    vocabulary: torch.Tensor | None = None
    # ``TreeDecoder.top_tokens``.
    top_tokens: Callable[[torch.Tensor, int, Restriction | None], TopTokens] = top_tokens

    @property
    def names(self) -> list[str]:
        """Scorers in the order of ``Candidates.parts``."""
        return [*self.weights]

    @property
    def decoder_alone(self) -> bool:
        return self.names == [DECODER]

    @property
    def at_once(self) -> bool:
        """Whether one call of ``top_tokens`` computes all that the search needs."""
        simple = self.constraints.penalty is None and not self.constrain_logits
        return self.decoder_alone and self.weights[DECODER] == 1 and simple

    def for_drafts(self, vocabulary: torch.Tensor | None) -> Scoring:
        """Return the scoring of drafts over a draft vocabulary."""
        constraints = self.constraints.restricted(vocabulary)
        return replace(self, constraints=constraints, vocabulary=vocabulary)

    def constrain(self, requests: Sequence[Request], scores: torch.Tensor) -> torch.Tensor:
        """Return scores (R, V) with forbidden tokens at -inf."""
        restriction = self.restrict(requests, scores)
        return scores if restriction is None else restriction.apply(scores, torch.float32)

    def restrict(self, requests: Sequence[Request], scores: torch.Tensor) -> Restriction | None:
        """Return all constraints as a restriction; None: no effect."""
        least = [request.scorers.min_length for request in requests for _ in request.prefixes]
        limited = any(least)
        if self.constraints.is_empty and not limited:
            return None
        prefixes = [prefix for request in requests for prefix in request.prefixes]
        rules = self.constraints.timestamps
        return self.constraints.restrict(
            scores,
            upload([prefix.length for prefix in prefixes], scores.device),
            upload(least, scores.device) if limited else None,
            None if rules is None else rules.groups_after(prefixes, scores.device),
            torch.float32,
        )

    def find_candidates(self, requests: Sequence[Request], width: int) -> None:
        """Set the candidates of evaluated prefixes."""
        requests = [
            request._replace(prefixes=missing)
            for request in requests
            if (missing := [*filter(request.lacks_candidates, request.prefixes)])
        ]
        prefixes = [prefix for request in requests for prefix in request.prefixes]
        if prefixes:
            logits = torch.stack([prefix.logits for prefix in prefixes])
            rows = self.candidates(requests, logits, width)
            for prefix, candidates in zip(prefixes, rows, strict=True):
                prefix.candidates = candidates

    def candidates(
        self, requests: Sequence[Request], logits: torch.Tensor, width: int
    ) -> list[Candidates]:
        """Return ``width`` best next tokens (more with CTC) of R prefixes with logits (R, V)."""
        if self.at_once and not any(request.scorers.min_length for request in requests):
            restriction = self.restrict(requests, logits)
            gains, columns = self.top_tokens(logits, min(width, logits.size(1)), restriction)
            tokens = columns if self.vocabulary is None else self.vocabulary[columns]
            pairs = zip(tokens.tolist(), gains.tolist(), strict=True)
            return [Candidates(of_row, row_gains, [row_gains]) for of_row, row_gains in pairs]
        if self.constraints.renormalize:
            log_probs = self.constrain(requests, logits.float()).log_softmax(dim=-1)
        else:
            log_probs = self.constrain(requests, logits.float().log_softmax(dim=-1))
        full = {DECODER: log_probs}
        for name in self.names:
            if name not in (DECODER, CTC):
                scores = torch.cat([r.scorers.full_scores(name, r.prefixes) for r in requests])
                full[name] = scores if self.vocabulary is None else scores[:, self.vocabulary]
        weighted = full[DECODER]
        if not self.decoder_alone or self.weights[DECODER] != 1:  # else nothing to add up
            weighted = sum(self.weights[name] * full[name] for name in full)
        count = int(PRE_BEAM_RATIO * width) if CTC in self.weights else width
        gains, columns = top_scores(weighted, min(count, weighted.size(1)))
        if CTC in self.weights:
            # The end symbol is the last candidate, so that CTC scores it whatever its rank.
            eos = self.constraints.eos
            gains = gains.masked_fill(columns == eos, -torch.inf)
            gains = torch.cat([gains, weighted[:, eos, None]], dim=1)
            columns = torch.cat([columns, torch.full_like(columns[:, :1], eos)], dim=1)
        gains = gains.double()
        tokens = columns if self.vocabulary is None else self.vocabulary[columns]
        parts = {name: scores.gather(-1, columns).double() for name, scores in full.items()}
        if CTC in self.weights:
            sizes = [len(request.prefixes) for request in requests]
            parts[CTC] = torch.cat(
                [
                    request.scorers.ctc.score(request.prefixes, rows, request.window)
                    for request, rows in zip(requests, tokens.split(sizes), strict=True)
                ]
            )
            gains = gains + self.weights[CTC] * parts[CTC]
        columns = [tokens.double(), gains, *(parts[name] for name in self.names)]
        rows = torch.stack(columns, dim=1).tolist()
        windows = [request.window for request in requests for _ in request.prefixes]
        return [
            Candidates([*map(int, row[0])], row[1], row[2:], window)
            for row, window in zip(rows, windows, strict=True)
        ]
