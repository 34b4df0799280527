"""How far and how wide to draft."""

from dataclasses import dataclass

from espnet_medusa.search.ahead.lookahead import Lookahead


@dataclass(frozen=True)
class DraftShape:
    """What is drafted behind what is known.

    Attributes:
        depth: Steps to run ahead; 0 drafts nothing.
        width: Hypotheses of the drafted beam.
        budget: Most nodes of one utterance in a decoder call; None without limit.
        choices: Fixed shape instead of the drafted beam: how many of the best tokens hang behind
            every node of each depth (aiola's ``medusa_choices`` without the root).
        left_out: Scorers that are not asked while running ahead.
        lookahead: Chooses each draft's depth, up to ``depth``; None: always ``depth``.
    """

    depth: int
    width: int = 1
    budget: int | None = None
    choices: tuple[int, ...] | None = None
    left_out: frozenset[str] = frozenset()
    lookahead: Lookahead | None = None

    def count(self, step: int) -> int:
        """How many continuations of a prefix a step looks at."""
        return self.choices[step] if self.choices else self.width


PLAIN = DraftShape(depth=0)
