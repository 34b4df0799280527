"""A hypothesis prefix: its place in the token tree, and what is known about its next token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

UNEVALUATED = -1  # slot of a prefix that no decoder call has evaluated


class Candidates(NamedTuple):
    """Possible next tokens of a prefix, best first by all scorers except CTC."""

    tokens: list[int]  # M ids; with CTC, the end symbol is the last one
    gains: list[float]  # weighted sum of all scorers
    parts: list[list[float]]  # scores of the tokens, per scorer
    window: Any = None  # of the step, if CTC scores over a ``Window``


class CTCState(NamedTuple):
    """CTC forward log-probabilities of a prefix over T frames."""

    total: torch.Tensor  # (T,) paths that end in the prefix's last token or in blank at frame t
    blank: torch.Tensor  # (T,) paths that end in blank
    score: float  # log-probability of all label sequences that start with the prefix
    window: Any = None  # of the step that appended the last token; None: all frames


@dataclass(eq=False, slots=True)
class Prefix:
    """The path that ends with ``token``; prefixes of one utterance share their ancestors."""

    token: int  # last token
    parent: Prefix | None = None  # the prefix without that token; None for the prompt
    length: int = 0  # tokens after the prompt
    # Prefixes with one more token, by token.
    children: dict[int, Prefix] = field(default_factory=dict)
    slot: int = UNEVALUATED  # node of the decoder's token tree, or ``UNEVALUATED``
    logits: torch.Tensor | None = None  # (V,) logits of the next token, until they are used
    # Head inputs (R, D) of a decoder call and this prefix's row, once evaluated.
    head_input: tuple[torch.Tensor, int] | None = None
    # Greedy search: the best next token and its log-probability, once evaluated.
    best: tuple[int, float] | None = None
    # Greedy search, rules other than exact: the log-probability of the drafted ``token``; None: not
    # accepted.
    accepted_log_prob: float | None = None
    candidates: Candidates | None = None  # beam search: possible next tokens
    # Beam search, by name of each full scorer: (V,) scores, None after use, and its state.
    scorers: dict[str, tuple[torch.Tensor | None, Any]] = field(default_factory=dict)
    ctc: CTCState | None = None  # beam search: the state of the CTC scorer
    root: Prefix = field(init=False, repr=False)  # the prompt, one object per utterance

    def __post_init__(self):
        self.root = self if self.parent is None else self.parent.root

    @property
    def evaluated(self) -> bool:
        """Whether a decoder call has evaluated the prefix."""
        return self.slot != UNEVALUATED

    def child(self, token: int) -> Prefix:
        """Return the prefix with ``token`` appended; create it if it does not exist."""
        child = self.children.get(token)
        if child is None:
            child = self.children[token] = Prefix(token, self, self.length + 1)
        return child

    def ancestors(self) -> Iterator[Prefix]:
        """Yield this prefix and all shorter ones, longest first."""
        prefix: Prefix | None = self
        while prefix is not None:
            yield prefix
            prefix = prefix.parent

    def tokens(self) -> list[int]:
        """Return the tokens after the prompt."""
        return [prefix.token for prefix in self.ancestors()][-2::-1]

    def forget_scores(self) -> None:
        self.logits = self.best = self.accepted_log_prob = self.candidates = self.ctc = None
        self.scorers = {}

    def forget(self) -> None:
        """Free all but the tokens, which ended hypotheses still need."""
        self.slot, self.head_input, self.children = UNEVALUATED, None, {}
        self.forget_scores()
