"""CTC prefix scores of one utterance's hypotheses, without a loop over frames.

The recursions are those of Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End
Speech Recognition", algorithm 2. ESPnet's ``CTCPrefixScoreTH`` computes them frame by frame for
every candidate. Each recursion is linear, so that a cumulative log-sum-exp solves it for all frames
at once. Only surviving prefixes need it; a candidate's score is a single sum over frames.
"""

from collections.abc import Sequence

import torch

from espnet_medusa.decoding.search.ctc_window import CTCWindows, Window
from espnet_medusa.decoding.tree.prefix import CTCState, Prefix

LOG_ZERO = -1e10


class CTCPrefix:
    """Scores next tokens of prefixes; ``Prefix.ctc`` has the states.

    Args:
        log_probs: (T, V) of the CTC branch.
        eos: End symbol; its score is that of all paths of the prefix over all frames.
        prompt_length: P. As in ESPnet 202511, each of the P - 1 prompt tokens after the first one
            counts as a label, which takes a frame. So the first label is at frame P - 1 or later.
        window_margin: As ``ctc_window_margin``; 0: score over all frames.
    """

    def __init__(
        self,
        log_probs: torch.Tensor,
        blank: int,
        eos: int,
        prompt_length: int = 1,
        window_margin: int = 0,
    ):
        self.by_token, self.frames = log_probs.t(), len(log_probs)
        self.blank, self.eos = blank, eos
        self.prompt_labels = prompt_length - 1
        self.cumulated_blank = self._emitted(blank, 0, self.frames).cumsum(0)
        self.windows = CTCWindows(log_probs, blank, window_margin) if window_margin > 0 else None

    def window(self, prefixes: Sequence[Prefix], before: Window | None) -> Window | None:
        """Return the window of a step; None: all frames.

        Args:
            prefixes: Those of all running hypotheses.
            before: The window of the step before; None at the first step.
        """
        if self.windows is None:
            return None
        states = self.states(prefixes, before)
        return self.windows.after(before, states, self._labels(prefixes[0]))

    def score(
        self, prefixes: Sequence[Prefix], tokens: torch.Tensor, window: Window | None = None
    ) -> torch.Tensor:
        """Return scores (R, M) in float64 of next tokens (R, M); prefixes have the same length.

        With a ``window``, the states of the prefixes are those that it was computed from.
        """
        states = self.states(prefixes) if window is None else [prefix.ctc for prefix in prefixes]
        total = torch.stack([state.total for state in states])[:, None]
        blank = torch.stack([state.blank for state in states])[:, None]
        last = torch.tensor([prefix.token for prefix in prefixes], device=tokens.device)
        before = torch.where((tokens == last[:, None])[..., None], blank, total)
        labels = self._labels(prefixes[0])
        start, end = self._bounds(labels, window)
        emitted = self._emitted(tokens, start - 1, end)
        scores = enter(before[..., start - 1 : end], emitted, labels)
        scores = torch.where(tokens == self.eos, total[..., -1], scores)
        if self.blank != self.eos:
            scores = scores.masked_fill(tokens == self.blank, LOG_ZERO)
        before = torch.tensor([state.score for state in states], dtype=torch.float64)
        return scores - before.to(scores.device)[:, None]

    def states(self, prefixes: Sequence[Prefix], window: Window | None = None) -> list[CTCState]:
        """Return the states of prefixes of equal length; missing ones are computed and cached.

        ``window`` is that of the step which appended the last tokens. With a window, the parents'
        states must be known.
        """
        missing = [p for p in prefixes if p.ctc is None or p.ctc.window is not window]
        if missing and missing[0].parent is None:
            blank = self.cumulated_blank
            missing[0].ctc = CTCState(blank, blank, 0.0)
        elif missing:
            self._extend(missing, window)
        return [prefix.ctc for prefix in prefixes]

    def _extend(self, prefixes: Sequence[Prefix], window: Window | None) -> None:
        parents = [prefix.parent for prefix in prefixes]
        states = self.states(parents) if window is None else [parent.ctc for parent in parents]
        tokens = torch.tensor([prefix.token for prefix in prefixes], device=self.by_token.device)
        before = torch.stack(
            [
                state.blank if prefix.token == prefix.parent.token else state.total
                for prefix, state in zip(prefixes, states, strict=True)
            ]
        )
        labels = self._labels(parents[0])
        start, end = self._bounds(labels, window)
        seen = slice(start - 1, end)  # with the frame before the window
        before, emitted = before[:, seen], self._emitted(tokens, start - 1, end)
        scores = enter(before, emitted, labels).tolist()
        emitted, cumulated_blank = emitted.cumsum(-1), self.cumulated_blank[seen]
        entered = torch.full_like(before, LOG_ZERO)
        entered[:, 1:] = (before - emitted)[:, :-1]
        if labels == 0:
            entered[:, 0] = 0.0
        nonblank = (emitted + entered.logcumsumexp(-1)).clamp_(min=LOG_ZERO)
        entered = torch.full_like(before, LOG_ZERO)
        entered[:, 1:] = (nonblank - cumulated_blank)[:, :-1]
        blank = self.cumulated_blank.new_full((len(prefixes), self.frames), LOG_ZERO)
        blank[:, seen] = (cumulated_blank + entered.logcumsumexp(-1)).clamp_(min=LOG_ZERO)
        total = blank.clone()
        total[:, seen] = torch.logaddexp(nonblank, blank[:, seen])
        if end < self.frames:  # all frames after the window are blank
            tail = self.cumulated_blank[end:] - self.cumulated_blank[end - 1]
            total[:, end:] = blank[:, end:] = total[:, end - 1, None] + tail
        for row, prefix in enumerate(prefixes):
            prefix.ctc = CTCState(total[row], blank[row], scores[row], window)

    def _labels(self, prefix: Prefix) -> int:
        return self.prompt_labels + prefix.length

    def _bounds(self, labels: int, window: Window | None) -> tuple[int, int]:
        """Return the frames from the first one, at least 1, that can emit the next label."""
        if window is not None:
            return window.start, window.end
        return min(max(labels, 1), self.frames), self.frames

    def _emitted(self, tokens: torch.Tensor | int, start: int, end: int) -> torch.Tensor:
        """Return log-probabilities (..., T) of tokens (...,), in float64 for precise sums."""
        return self.by_token[:, start:end][tokens].double()


def enter(before: torch.Tensor, emitted: torch.Tensor, labels: int) -> torch.Tensor:
    """Return log-probabilities (...,) of all sequences that continue a prefix with a label.

    The label is at the second of T frames or later; at the first one if it is the first label.

    Args:
        before: (..., T) paths of the prefix, which has ``labels`` labels, up to each frame.
        emitted: (..., T) log-probabilities of the label.
    """
    paths = before[..., :-1] + emitted[..., 1:]
    if labels == 0:
        paths = torch.cat([emitted[..., :1], paths], dim=-1)
    if paths.size(-1) == 0:
        return torch.full_like(emitted[..., 0], LOG_ZERO)
    return paths.logsumexp(-1)
