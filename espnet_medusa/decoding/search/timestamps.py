"""Timestamp rules: where timestamp tokens are allowed, for all positions of a draft at once.

The rules are those of openai-whisper (``ApplyTimestampRules``; Radford et al., arXiv 2212.04356,
section 2.3):

- The first token is a timestamp, not later than a maximum.
- Later timestamps occur in pairs, the end of a segment and the start of the next one. Only the
  last one, before the end symbol, may be single.
- Timestamps do not decrease, and a segment is longer than 0 s.
- If the timestamps together are more probable than any other token, a timestamp follows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from espnet_medusa.decoding.tree.best_tokens import ColumnGroups
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.token_tree import upload


class TimestampStates(NamedTuple):
    """States of R prefixes for the timestamp rules; each attribute is (R,)."""

    begins: torch.Tensor  # whether there is no token after the prompt
    last: torch.Tensor  # whether the last token is a timestamp
    paired: torch.Tensor  # whether the token before the last one is a timestamp or missing
    latest: torch.Tensor  # id of the last timestamp, or ``TimestampRules.first`` - 1

    def select(self, rows: torch.Tensor) -> TimestampStates:
        return TimestampStates(*(part[rows] for part in self))


@dataclass(frozen=True, eq=False)
class TimestampRules:
    """Rules for scores whose columns are text, end symbol, special tokens, timestamps, in order.

    Tokens that fine-tuning has added are text and follow the timestamps.
    """

    first: int  # id of the timestamp 0 s
    times: torch.Tensor  # (T,) timestamp ids of T columns
    first_column: int  # of the timestamps
    last: int  # id of the last timestamp
    text_follows: bool = False  # whether columns follow those of the timestamps
    latest_first: int | None = None  # maximum id of the first token; None: any timestamp

    def restricted(self, vocabulary: torch.Tensor) -> TimestampRules:
        """Return the rules for scores of ascending ids (V',)."""
        timed = (vocabulary >= self.first) & (vocabulary <= self.last)
        first_column = int((vocabulary < self.first).sum())
        follows = first_column + int(timed.sum()) < len(vocabulary)
        times = vocabulary[timed]
        return replace(self, times=times, first_column=first_column, text_follows=follows)

    def states(self, prefixes: Sequence[Prefix], device: torch.device) -> TimestampStates:
        rows = [self._state(prefix) for prefix in prefixes]
        begins, last, paired, latest = torch.tensor(rows, device=device).unbind(1)
        return TimestampStates(begins.bool(), last.bool(), paired.bool(), latest)

    def _state(self, prefix: Prefix) -> tuple[bool, bool, bool, int]:
        if prefix.parent is None:
            return True, False, True, self.first - 1
        ids = range(self.first, self.last + 1)
        paired = prefix.length < 2 or prefix.parent.token in ids
        written = (node.token for node in prefix.ancestors() if node.parent is not None)
        latest = next((token for token in written if token in ids), self.first - 1)
        return False, prefix.token in ids, paired, latest

    def advance(self, states: TimestampStates, tokens: torch.Tensor) -> TimestampStates:
        """Return the states after appending a token (R,) to each prefix."""
        timed = (tokens >= self.first) & (tokens <= self.last)
        return TimestampStates(
            torch.zeros_like(states.begins),
            timed,
            states.begins | states.last,
            torch.where(timed, tokens, states.latest),
        )

    def groups(self, states: TimestampStates) -> ColumnGroups:
        """Return the allowed text and timestamps after R prefixes with these states."""
        times = self.times.to(states.latest.device)
        closes = states.last & ~states.paired  # text is forbidden after the end of a segment
        least = torch.searchsorted(times, states.latest + (~closes).long())
        end = torch.full_like(least, len(times))
        if self.latest_first is not None:
            end = torch.where(states.begins, (times <= self.latest_first).sum(), end)
        end = torch.where(states.last & states.paired, least, end)
        first = self.first_column
        limits = [closes.long(), states.begins.long(), first + least, first + end]
        return ColumnGroups(first, torch.stack(limits, dim=1), self._after)

    def groups_after(self, prefixes: Sequence[Prefix], device: torch.device) -> ColumnGroups:
        """Return ``groups`` after prefixes, computed on the host, which is faster for few."""
        limits = [self._limits(prefix) for prefix in prefixes]
        return ColumnGroups(self.first_column, upload(limits, device, torch.long), self._after)

    @property
    def _after(self) -> int | None:
        """First column after the timestamps, or None."""
        return self.first_column + len(self.times) if self.text_follows else None

    def _limits(self, prefix: Prefix) -> tuple[bool, bool, int, int]:
        begins, last, paired, latest = self._state(prefix)
        closes = last and not paired
        least, end = bisect_left(self._ids, latest + (not closes)), len(self._ids)
        if begins and self.latest_first is not None:
            end = bisect_right(self._ids, self.latest_first)
        if last and paired:
            end = least
        return closes, begins, self.first_column + least, self.first_column + end

    @cached_property
    def _ids(self) -> list[int]:
        return self.times.tolist()


def build_timestamp_rules(
    first: int, vocab_size: int, latest_first: int | None = None, after: int | None = None
) -> TimestampRules:
    """Return the rules for a whole vocabulary, with ``latest_first`` in timestamp steps.

    ``after`` is the first id after the timestamps; None: they are the last ids.
    """
    after = vocab_size if after is None else after
    latest = None if latest_first is None else first + latest_first
    ids, text_follows = torch.arange(first, after), after < vocab_size
    return TimestampRules(first, ids, first, after - 1, text_follows, latest)
