"""Allowed tokens at each position, and the length penalty: pure functions of scores.

They depend only on the position, so all positions of a draft are constrained at once. Results equal
those of the logits processors of the same names in transformers. Timestamp rules also depend on the
prefix; see ``timestamps.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.search_options import SearchOptions
from espnet_medusa.decoding.search.timestamps import TimestampRules
from espnet_medusa.decoding.tree.best_tokens import ColumnGroups, Restriction


@dataclass(frozen=True, eq=False)
class Constraints:
    """Constraints of one vocabulary, see ``build_constraints``."""

    eos: int  # end symbol
    # Other tokens that end a text. The end symbol gets the best score of all ends, and the others
    # are blocked.
    other_ends: tuple[int, ...] = ()
    # (P + 2, ends) bool, as ``blocked``: where the end symbol and the others are forbidden.
    blocked_ends: torch.Tensor | None = None
    # (P + 2, V) bool, tokens forbidden at each of P forced positions, at the first free position,
    # and at all later ones; None: no token is forbidden.
    blocked: torch.Tensor | None = None
    # Start and factor of the exponential decay length penalty, or None.
    penalty: tuple[int, float] | None = None
    forced_prefix: tuple[int, ...] = ()  # tokens that start every hypothesis
    timestamps: TimestampRules | None = None
    # True: normalize probabilities over the allowed tokens, as openai-whisper; False: over all.
    renormalize: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is no constraint other than minimum lengths."""
        return self.blocked is None and self.penalty is None and self.timestamps is None

    @property
    def later(self) -> Constraints:
        """The constraints after the first tokens of a text, such as a known prefix."""
        blocked, ends = self.blocked, self.blocked_ends
        return replace(
            self,
            blocked=None if blocked is None else blocked[-1:],
            blocked_ends=None if ends is None else ends[-1:],
        )

    @cached_property
    def _limited(self) -> list[bool]:
        """P + 2, whether a token is forbidden at a position, as in ``blocked``."""
        return [] if self.blocked is None else self.blocked.any(dim=1).tolist()

    def affect(self, first: int, last: int) -> bool:
        """Return whether scores may change at positions after ``first`` to ``last`` tokens."""
        later = self._limited[min(first, len(self._limited) - 1) :]
        penalized = self.penalty is not None and last > self.penalty[0]
        return any(later) or penalized or self.timestamps is not None

    @cached_property
    def _columns(self) -> torch.Tensor:
        """(C,) tokens that are forbidden at some position, usually few."""
        return self.blocked.any(dim=0).nonzero()[:, 0]

    def restricted(self, vocabulary: torch.Tensor | None) -> Constraints:
        """Return the constraints for columns (V',), which include ``eos``; None: all columns."""
        if vocabulary is None:
            return self
        blocked, timestamps = self.blocked, self.timestamps
        kept, columns = None, []
        if self.other_ends:
            ids = vocabulary.tolist()
            known = [end in ids for end in self.other_ends]
            columns = [ids.index(end) for end in self.other_ends if end in ids]
            kept = torch.tensor([True, *known], device=self.blocked_ends.device)
        return replace(
            self,
            eos=int((vocabulary == self.eos).nonzero()),
            other_ends=tuple(columns),
            blocked_ends=self.blocked_ends if kept is None else self.blocked_ends[:, kept],
            blocked=None if blocked is None else blocked[:, vocabulary.to(blocked.device)],
            timestamps=None if timestamps is None else timestamps.restricted(vocabulary),
        )

    def count_allowed(self, tokens: Sequence[int], min_length: int = 0) -> int:
        """Return how many of the tokens after a prompt precede the first forbidden one."""
        forbidden = [self.eos == token and place < min_length for place, token in enumerate(tokens)]
        if self.blocked is not None and tokens:
            rows = [min(place, len(self.blocked) - 1) for place in range(len(tokens))]
            blocked = self.blocked[rows, [*tokens]].tolist()
            forbidden = [one or other for one, other in zip(forbidden, blocked, strict=True)]
        return forbidden.index(True) if True in forbidden else len(forbidden)

    def apply(
        self, scores: torch.Tensor, lengths: torch.Tensor, min_lengths: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return scores with forbidden tokens at -inf and with the end symbol's penalty.

        Timestamp rules are ignored. If no constraint applies, the result is ``scores`` itself.

        Args:
            scores: (R, V) logits or log-probabilities; not modified.
            lengths: (R,) number of tokens between the prompt and the position.
            min_lengths: (R,) minimum number of tokens before an end symbol, or None.
        """
        restriction = self.restrict(scores, lengths, min_lengths)
        return scores if restriction is None else restriction.apply(scores)

    def restrict(
        self,
        scores: torch.Tensor,
        lengths: torch.Tensor,
        min_lengths: torch.Tensor | None = None,
        groups: ColumnGroups | None = None,
        dtype: torch.dtype | None = None,
    ) -> Restriction | None:
        """Return the constraints for prefixes with scores (R, V); None: no effect.

        ``groups`` are the limits by timestamp rules, ``dtype`` that of the end symbol's scores (by
        default that of ``scores``).
        """
        if self.is_empty and min_lengths is None:
            return None
        blocked = rows = columns = None
        if self.blocked is not None:
            blocked, columns = self.blocked.to(lengths.device), self._columns.to(lengths.device)
            rows = lengths.clamp(max=len(blocked) - 1)
        eos_scores = None
        if min_lengths is not None or self.penalty is not None or self.other_ends:
            eos_scores = self._end_scores(scores, rows).to(dtype or scores.dtype)
        if min_lengths is not None:
            eos_scores = eos_scores.masked_fill(lengths < min_lengths, -torch.inf)
        if self.penalty is not None:
            eos_scores = _add_penalty(eos_scores, lengths, *self.penalty)
        return Restriction(self.eos, blocked, rows, eos_scores, columns, groups, self.renormalize)

    def _end_scores(self, scores: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """Return the scores (R,) of the best allowed end; ``rows``: (R,) of ``blocked``."""
        if self.other_ends:
            ends = scores[:, [self.eos, *self.other_ends]]
            return ends.masked_fill(self.blocked_ends.to(rows.device)[rows], -torch.inf).amax(dim=1)
        ends = scores[:, self.eos]
        if self.blocked is None:
            return ends
        # transformers applies the penalty first: the same result, as -inf stays -inf.
        return ends.masked_fill(self.blocked.to(rows.device)[rows, self.eos], -torch.inf)


def _add_penalty(
    scores: torch.Tensor, lengths: torch.Tensor, start: int, factor: float
) -> torch.Tensor:
    """Return s + |s| * (factor ** n - 1) for end symbol scores (R,), n tokens after ``start``."""
    # float32 as in transformers; half precision would round the weight.
    dtype = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.pow(factor, (lengths - start).clamp(min=0).double()) - 1
    weights = weights.clamp(max=torch.finfo(dtype).max).to(dtype)  # 0 * inf is NaN
    penalties = (scores.abs().to(dtype) * weights).to(scores.dtype)
    return scores + penalties.masked_fill(~torch.isfinite(scores), 0.0)


def build_constraints(
    options: SearchOptions,
    vocab_size: int,
    eos: int,
    device: torch.device | str = "cpu",
    other_ends: Sequence[int] = (),
) -> Constraints:
    """Build the constraints of decode options; raise InputError if a value is not allowed.

    ``other_ends`` are tokens that end a text like ``eos``.
    """
    suppressed = _tokens(options, "suppress_tokens", vocab_size)
    begin = _tokens(options, "begin_suppress_tokens", vocab_size)
    forced = _tokens(options, "forced_prefix", vocab_size)
    other_ends = [token for token in other_ends if token not in suppressed]
    if eos in suppressed:
        raise InputError(
            f"suppress_tokens: {eos} is the end symbol, which every hypothesis needs; allowed: "
            "other ids, or begin_suppress_tokens against empty hypotheses"
        )
    if len({*suppressed, *begin}) == vocab_size:
        raise InputError(
            f"suppress_tokens, begin_suppress_tokens: all {vocab_size} ids; allowed: fewer, "
            "so that a first token is left"
        )
    for token in forced:
        if token == eos or token in suppressed:
            what = "the end symbol" if token == eos else "in suppress_tokens"
            raise InputError(f"forced_prefix: {token} is {what}; allowed: ids of other tokens")
    blocked = None
    if suppressed or begin or forced or other_ends:
        blocked = torch.zeros(len(forced) + 2, vocab_size, dtype=torch.bool)
        blocked[:, suppressed] = True
        blocked[len(forced), begin] = True
        for row, token in enumerate(forced):
            blocked[row] = True
            blocked[row, token] = False
        blocked = blocked.to(device)
    penalty, blocked_ends = _penalty(options.exponential_decay_length_penalty), None
    if other_ends:
        blocked_ends = blocked[:, [eos, *other_ends]]
        blocked[:, other_ends] = True
    return Constraints(eos, tuple(other_ends), blocked_ends, blocked, penalty, tuple(forced))


def _tokens(options: SearchOptions, name: str, vocab_size: int) -> list[int]:
    tokens = getattr(options, name)
    tokens, wrong = [] if tokens is None else tokens, [tokens]
    if isinstance(tokens, list | tuple):
        wrong = [t for t in tokens if type(t) is not int or not 0 <= t < vocab_size]
    if wrong:
        raise InputError(
            f"{name}: {wrong[0]!r}; allowed: a list of token ids, 0 to {vocab_size - 1}"
        )
    return list(tokens)


def _penalty(value: Any) -> tuple[int, float] | None:
    match value:
        case None | []:
            return None
        # A command line may give the start as a float.
        case [int() | float() as start, int() | float() as factor] if (
            start >= 0 and float(start).is_integer() and 0 < factor < torch.inf
        ):
            return int(start), float(factor)
    raise InputError(
        f"exponential_decay_length_penalty: {value!r}; allowed: [start, factor], start a whole "
        "number of tokens, 0 or more, and factor above 0"
    )
