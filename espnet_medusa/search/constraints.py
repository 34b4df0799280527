"""Which tokens may come at a position, and the length penalty: pure functions of scores.

They need a position's length only, so positions of a draft are constrained all at once, each as
it would be one token at a time. Values are those of transformers' processors of the same names.
Rules of timestamps need the prefixes, too (``timestamps.py``): who has them applies these as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.search.options import SearchOptions
from espnet_medusa.search.timestamps import TimestampRules
from espnet_medusa.tree.best_tokens import Restriction


@dataclass(frozen=True, eq=False)
class Constraints:
    """Constraints of one vocabulary; make them with ``build_constraints``.

    Attributes:
        eos: End symbol.
        blocked: (P + 2, V) bool, P the length of the forced prefix: tokens that must not come at
            each forced position, at the first free one, and at all later ones. None: no such.
        penalty: Start and factor of the exponential decay length penalty.
        forced_prefix: Tokens that every hypothesis begins with.
        timestamps: Rules over prefixes; None: no such.
        renormalize: Whether probabilities are among what may come, as openai-whisper has them; else
            they are the model's own.
    """

    eos: int
    blocked: torch.Tensor | None = None
    penalty: tuple[int, float] | None = None
    forced_prefix: tuple[int, ...] = ()
    timestamps: TimestampRules | None = None
    renormalize: bool = False

    @property
    def can_raise(self) -> bool:
        """Whether a score can become larger than the model's."""
        return self.penalty is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing but ``min_lengths`` constrains."""
        return self.blocked is None and self.penalty is None and self.timestamps is None

    @property
    def logits_first(self) -> bool:
        """Whether scores must be constrained before anything else looks at them."""
        return self.renormalize or self.timestamps is not None

    @cached_property
    def _columns(self) -> torch.Tensor:
        """(C,) tokens that must not come at some position: few as a rule."""
        return self.blocked.any(dim=0).nonzero()[:, 0]

    def restricted(self, vocabulary: torch.Tensor | None) -> Constraints:
        """The same over columns (V',) of the vocabulary, ``eos`` among them; None: over all."""
        if vocabulary is None:
            return self
        blocked, timestamps = self.blocked, self.timestamps
        eos = int((vocabulary == self.eos).nonzero())
        return replace(
            self,
            eos=eos,
            blocked=None if blocked is None else blocked[:, vocabulary.to(blocked.device)],
            timestamps=None if timestamps is None else timestamps.restricted(vocabulary, eos),
        )

    def count_allowed(self, tokens: Sequence[int], min_length: int = 0) -> int:
        """How many of these tokens may come, one after the other from the first position on.

        Args:
            tokens: Behind the prompt.
            min_length: No end symbol before so many tokens.
        """
        barred = [self.eos == token and place < min_length for place, token in enumerate(tokens)]
        if self.blocked is not None and tokens:
            rows = [min(place, len(self.blocked) - 1) for place in range(len(tokens))]
            blocked = self.blocked[rows, [*tokens]].tolist()
            barred = [one or other for one, other in zip(barred, blocked, strict=True)]
        return barred.index(True) if True in barred else len(barred)

    def apply(
        self, scores: torch.Tensor, lengths: torch.Tensor, min_lengths: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Scores with forbidden tokens at -inf and the end symbol's penalty.

        A forced token keeps its score, so that a hypothesis' score stays the model's.

        Args:
            scores: (R, V) logits or log-probabilities; not modified.
            lengths: (R,) tokens behind the prompt before the position.
            min_lengths: (R,) no end symbol before so many tokens; None for no such limit.

        Returns:
            (R, V); ``scores`` itself when there is nothing to apply. Timestamps are not looked at.
        """
        restriction = self.restrict(scores[:, self.eos], lengths, min_lengths)
        return scores if restriction is None else restriction.apply(scores)

    def restrict(
        self,
        eos_scores: torch.Tensor,
        lengths: torch.Tensor,
        min_lengths: torch.Tensor | None = None,
    ) -> Restriction | None:
        """What ``apply`` does to scores; None when there is nothing to apply.

        Args:
            eos_scores: (R,) the end symbol's.
            lengths: As ``apply``'s.
            min_lengths: As ``apply``'s.
        """
        if self.is_empty and min_lengths is None:
            return None
        blocked = rows = columns = None
        if self.blocked is not None:
            blocked, columns = (
                part.to(eos_scores.device) for part in (self.blocked, self._columns)
            )
            rows = lengths.clamp(max=len(blocked) - 1)
        if min_lengths is None and self.penalty is None:
            return Restriction(self.eos, blocked, rows, columns=columns)
        # transformers penalises before it suppresses: the same, as -inf is not penalised.
        if blocked is not None:
            eos_scores = eos_scores.masked_fill(blocked[rows, self.eos], -torch.inf)
        if min_lengths is not None:
            eos_scores = eos_scores.masked_fill(lengths < min_lengths, -torch.inf)
        if self.penalty is not None:
            eos_scores = _penalised(eos_scores, lengths, *self.penalty)
        return Restriction(self.eos, blocked, rows, eos_scores, columns)


def _penalised(
    scores: torch.Tensor, lengths: torch.Tensor, start: int, factor: float
) -> torch.Tensor:
    """(R,) end symbol's scores s + |s| * (factor ** n - 1), n tokens past ``start``."""
    # Half precision would round the weight; transformers' is a Python float, held in float32.
    dtype = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.pow(factor, (lengths - start).clamp(min=0).double()) - 1
    weights = weights.clamp(max=torch.finfo(dtype).max).to(dtype)  # 0 * inf would be no number
    penalties = (scores.abs().to(dtype) * weights).to(scores.dtype)
    return scores + penalties.masked_fill(~torch.isfinite(scores), 0.0)


def build_constraints(
    options: SearchOptions, vocab_size: int, eos: int, device: torch.device | str = "cpu"
) -> Constraints:
    """Check the options and make their constraints.

    Args:
        options: As decode configs give them.
        vocab_size: V.
        eos: End symbol.
        device: Where scores will be; elsewhere it works, too, with a copy per call.

    Raises:
        InputError: Names the option, its value and what is allowed.
    """
    suppressed = _tokens(options, "suppress_tokens", vocab_size)
    begin = _tokens(options, "begin_suppress_tokens", vocab_size)
    forced = _tokens(options, "forced_prefix", vocab_size)
    if eos in suppressed:
        raise InputError(
            f"suppress_tokens: {eos} is the end symbol, nothing would ever end; allowed: other "
            "ids, or begin_suppress_tokens to keep hypotheses from ending at once"
        )
    if len({*suppressed, *begin}) == vocab_size:
        raise InputError(
            f"suppress_tokens, begin_suppress_tokens: all {vocab_size} ids; allowed: fewer, so "
            "that one is left to begin with"
        )
    for token in forced:
        if token == eos or token in suppressed:
            what = "the end symbol" if token == eos else "in suppress_tokens"
            raise InputError(f"forced_prefix: {token} is {what}; allowed: ids of other tokens")
    blocked = None
    if suppressed or begin or forced:
        blocked = torch.zeros(len(forced) + 2, vocab_size, dtype=torch.bool)
        blocked[:, suppressed] = True
        blocked[len(forced), begin] = True
        for row, token in enumerate(forced):
            blocked[row] = True
            blocked[row, token] = False
        blocked = blocked.to(device)
    penalty = _penalty(options.exponential_decay_length_penalty)
    return Constraints(eos, blocked, penalty, tuple(forced))


def _tokens(options: SearchOptions, name: str, vocab_size: int) -> list[int]:
    """The token ids of an option."""
    value = getattr(options, name)
    tokens = [] if value is None else value
    listed = isinstance(tokens, list | tuple)
    wrong = [token for token in tokens if type(token) is not int] if listed else [tokens]
    wrong = wrong or [token for token in tokens if not 0 <= token < vocab_size]
    if wrong:
        raise InputError(
            f"{name}: {wrong[0]!r}; allowed: a list of token ids, 0 to {vocab_size - 1}"
        )
    return list(tokens)


def _penalty(value: Any) -> tuple[int, float] | None:
    """Start and factor, checked; None where there is no penalty."""
    match value:
        case None | []:
            return None
        # A command line's list of numbers may hold the start as a float.
        case [int() | float() as start, int() | float() as factor] if (
            start >= 0 and float(start).is_integer() and 0 < factor < torch.inf
        ):
            return int(start), float(factor)
    raise InputError(
        f"exponential_decay_length_penalty: {value!r}; allowed: [start, factor], start a whole "
        "number of tokens, 0 or more, and factor above 0"
    )
