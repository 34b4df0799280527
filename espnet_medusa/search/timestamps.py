"""Where times may stand among text: rules over prefixes, pure functions of all positions at once.

They are those of openai-whisper (``ApplyTimestampRules``; Radford et al., arXiv 2212.04356, 2.3).
Beside a length they need a prefix's own tokens, and the last one its scores:

- The first token is a time, the latest allowed one or before it.
- Times stand in pairs, the end of a segment and the start of the next, but for the last before the
  end symbol.
- Times do not fall, and a segment lasts longer than nothing.
- Where all times together are more probable than any other token, a time comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from espnet_medusa.tree.prefix import Prefix


@dataclass(frozen=True, eq=False)
class TimestampStates:
    """What the rules look at of R prefixes; each (R,).

    Attributes:
        begins: Nothing stands behind the prompt.
        last: The last token is a time.
        paired: Nothing but a time stands before it.
        latest: The last time, one less than the first id where there is none.
    """

    begins: torch.Tensor
    last: torch.Tensor
    paired: torch.Tensor
    latest: torch.Tensor

    def select(self, rows: torch.Tensor) -> TimestampStates:
        """States of these rows, in this order."""
        return TimestampStates(
            self.begins[rows], self.last[rows], self.paired[rows], self.latest[rows]
        )


@dataclass(frozen=True, eq=False)
class TimestampRules:
    """Rules of one vocabulary, in which ids below the end symbol are text.

    Attributes:
        first: Id of the time 0; all ids from there on are times.
        times: (T,) ids of the last columns of scores.
        eos: Column of the end symbol; what stands between it and the times is neither.
        latest_first: Last id that the first token may be; None: any time.
    """

    first: int
    times: torch.Tensor
    eos: int
    latest_first: int | None = None

    def restricted(self, vocabulary: torch.Tensor, eos: int) -> TimestampRules:
        """The same over columns (V',) of the vocabulary, ascending; ``eos`` is its column."""
        times = vocabulary[vocabulary >= self.first]
        return TimestampRules(self.first, times, eos, self.latest_first)

    def states(self, prefixes: Sequence[Prefix], device: torch.device) -> TimestampStates:
        """Of R prefixes."""
        rows = [self._state(prefix) for prefix in prefixes]
        begins, last, paired, latest = torch.tensor(rows, device=device).unbind(1)
        return TimestampStates(begins.bool(), last.bool(), paired.bool(), latest)

    def _state(self, prefix: Prefix) -> tuple[bool, bool, bool, int]:
        if prefix.parent is None:
            return True, False, True, self.first - 1
        paired = prefix.length < 2 or prefix.parent.token >= self.first
        written = (one.token for one in prefix.ancestors() if one.parent is not None)
        latest = next((token for token in written if token >= self.first), self.first - 1)
        return False, prefix.token >= self.first, paired, latest

    def advance(self, states: TimestampStates, tokens: torch.Tensor) -> TimestampStates:
        """States of R prefixes, each longer by its token (R,)."""
        timed = tokens >= self.first
        return TimestampStates(
            torch.zeros_like(states.begins),
            timed,
            states.begins | states.last,
            torch.where(timed, tokens, states.latest),
        )

    def apply(self, scores: torch.Tensor, states: TimestampStates) -> torch.Tensor:
        """A copy of scores with what must not come at -inf.

        Args:
            scores: (R, V) logits or log-probabilities, other constraints applied.
            states: Of R prefixes.
        """
        width = scores.size(1) - len(self.times)
        closes = states.last & ~states.paired  # a segment's end: a time or the end symbol follows
        times = self._apply_to_times(scores[:, width:], states, closes)
        best = scores[:, self.eos : width].amax(dim=-1)
        if self.eos > 0:
            text = scores[:, : self.eos].amax(dim=-1)
            best = torch.where(closes, best, torch.maximum(best, text))
        timed = states.begins | (times.float().logsumexp(dim=-1) > best.float())
        scores = torch.cat([scores[:, :width], times], dim=1)
        scores[:, :width].masked_fill_(timed[:, None], -torch.inf)
        scores[:, : self.eos].masked_fill_(closes[:, None], -torch.inf)
        return scores

    def _apply_to_times(
        self, scores: torch.Tensor, states: TimestampStates, closes: torch.Tensor
    ) -> torch.Tensor:
        """(R, T) scores of times."""
        ids = self.times.to(scores.device)
        least = states.latest + (~closes).long()
        barred = (ids < least[:, None]) | (states.last & states.paired)[:, None]
        if self.latest_first is not None:
            barred |= states.begins[:, None] & (ids > self.latest_first)
        return scores.masked_fill(barred, -torch.inf)


def build_timestamp_rules(
    first: int, eos: int, vocab_size: int, latest_first: int | None = None
) -> TimestampRules:
    """Rules of a whole vocabulary.

    Args:
        first: Id of the time 0, above ``eos``.
        eos: End symbol.
        vocab_size: V.
        latest_first: Most steps that the first time may be; None: any.
    """
    latest = None if latest_first is None else first + latest_first
    return TimestampRules(first, torch.arange(first, vocab_size), eos, latest)
