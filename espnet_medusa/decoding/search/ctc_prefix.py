"""CTC prefix scores of one utterance's hypotheses, without a loop over frames.

The recursions are those of Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End
Speech Recognition", algorithm 2. ESPnet's ``CTCPrefixScoreTH`` computes them frame by frame for
every candidate. Each recursion is linear, so that a cumulative log-sum-exp solves it for all frames
at once. Only surviving prefixes need it; a candidate's score is a single sum over frames.
"""

from collections.abc import Sequence

import torch

from espnet_medusa.decoding.tree.prefix import CTCState, Prefix

LOG_ZERO = -1e10


class CTCPrefix:
    """Scores next tokens of prefixes; ``Prefix.ctc`` has the states.

    Args:
        log_probs: (T, V) of the CTC branch.
        eos: End symbol; its score is that of all paths of the prefix over all frames.
        prompt_length: P. As in ESPnet 202511, each of the P - 1 prompt tokens after the first one
            counts as a label, which takes a frame. So the first label is at frame P - 1 or later.
    """

    def __init__(self, log_probs: torch.Tensor, blank: int, eos: int, prompt_length: int = 1):
        self.by_token = log_probs.t()
        self.blank, self.eos = blank, eos
        self.prompt_labels = prompt_length - 1
        self.cumulated_blank = self._emitted(blank).cumsum(0)

    def score(self, prefixes: Sequence[Prefix], tokens: torch.Tensor) -> torch.Tensor:
        """Return scores (R, M) in float64 of next tokens (R, M); prefixes have the same length."""
        states = self.states(prefixes)
        total = torch.stack([state.total for state in states])[:, None]
        blank = torch.stack([state.blank for state in states])[:, None]
        last = torch.tensor([prefix.token for prefix in prefixes], device=tokens.device)
        before = torch.where((tokens == last[:, None])[..., None], blank, total)
        scores = self._enter(before, self._emitted(tokens), self.prompt_labels + prefixes[0].length)
        scores = torch.where(tokens == self.eos, total[..., -1], scores)
        if self.blank != self.eos:
            scores = scores.masked_fill(tokens == self.blank, LOG_ZERO)
        before = torch.tensor([state.score for state in states], dtype=torch.float64)
        return scores - before.to(scores.device)[:, None]

    def states(self, prefixes: Sequence[Prefix]) -> list[CTCState]:
        """Return the states of prefixes of equal length; missing ones are computed and cached."""
        missing = [prefix for prefix in prefixes if prefix.ctc is None]
        if missing and missing[0].parent is None:
            blank = self.cumulated_blank
            missing[0].ctc = CTCState(torch.full_like(blank, LOG_ZERO), blank, blank, 0.0)
        elif missing:
            self._extend(missing)
        return [prefix.ctc for prefix in prefixes]

    def _extend(self, prefixes: Sequence[Prefix]) -> None:
        parents = [prefix.parent for prefix in prefixes]
        states = self.states(parents)
        tokens = torch.tensor([prefix.token for prefix in prefixes], device=self.by_token.device)
        before = torch.stack(
            [
                state.blank if prefix.token == prefix.parent.token else state.total
                for prefix, state in zip(prefixes, states, strict=True)
            ]
        )
        labels = self.prompt_labels + parents[0].length
        emitted = self._emitted(tokens)
        scores = self._enter(before, emitted, labels).tolist()
        first = self._first_frame(labels)
        emitted = emitted.cumsum(-1)
        entered = torch.full_like(before, LOG_ZERO)
        entered[:, first:] = (before - emitted)[:, first - 1 : -1]
        if labels == 0:
            entered[:, 0] = 0.0
        nonblank = (emitted + entered.logcumsumexp(-1)).clamp_(min=LOG_ZERO)
        entered = torch.full_like(before, LOG_ZERO)
        entered[:, 1:] = (nonblank - self.cumulated_blank)[:, :-1]
        blank = (self.cumulated_blank + entered.logcumsumexp(-1)).clamp_(min=LOG_ZERO)
        total = torch.logaddexp(nonblank, blank)
        for row, prefix in enumerate(prefixes):
            prefix.ctc = CTCState(nonblank[row], total[row], blank[row], scores[row])

    def _emitted(self, tokens: torch.Tensor | int) -> torch.Tensor:
        """Return log-probabilities (..., T) of tokens (...,), in float64 for precise sums."""
        return self.by_token[tokens].double()

    def _first_frame(self, labels: int) -> int:
        """Return the first frame from 1 on that can emit a label after ``labels`` labels."""
        return min(max(labels, 1), self.by_token.size(1))

    def _enter(self, before: torch.Tensor, emitted: torch.Tensor, labels: int) -> torch.Tensor:
        """Return log-probabilities (...,) of all sequences that continue a prefix with a label.

        Args:
            before: (..., T) paths of the prefix, which has ``labels`` labels, up to each frame.
            emitted: (..., T) log-probabilities of the label.
        """
        first = self._first_frame(labels)
        paths = before[..., first - 1 : -1] + emitted[..., first:]
        if labels == 0:
            paths = torch.cat([emitted[..., :1], paths], dim=-1)
        if paths.size(-1) == 0:
            return torch.full_like(emitted[..., 0], LOG_ZERO)
        return paths.logsumexp(-1)
