"""Settings of drafting, and which of them are worth a try."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from espnet_medusa.search.options import CTC, CTC_HEADS, FIXED, MODEL

DEPTH_SHARES = (0.25, 0.5, 1.0)  # of the heads
DEPTH_SHARES_BEYOND = (1.5, 2.0)  # where a proposer can go on
MODEL_DEPTHS = (1, 2, 4, 8)  # each step is a call of the draft model
CTC_DEPTHS = (10, 20, 40)  # steps are free, nodes are not
CTC_BEAM_DEPTHS = (2, 5, 10, 20)
BEAM_WIDTH_SHARES = (0.6, 1.0, 2.0)  # of the beam
GREEDY_WIDTHS = (1, 2, 4)
BUDGET_SHARES = (0.4, 0.7)  # of the largest draft
WIDER_BUDGET = 2  # times a budget that the largest draft fills


@dataclass(frozen=True)
class DraftSetting:
    """What the tuning chooses.

    Attributes:
        drafter: Name of who drafts.
        depth: Steps drafted ahead, with a lookahead at most; 0 drafts nothing.
        width: Hypotheses drafted.
        budget: Most nodes of an utterance in a decoder call; None: the decode option's default.
        lookahead: The decode option.
        share: Of CTC where heads draft, too.
    """

    drafter: str
    depth: int
    width: int = 1
    budget: int | None = None
    lookahead: str = FIXED
    share: float | None = None

    def options(self) -> dict[str, int | float | str | None]:
        """As keys of a decode config, without who drafts."""
        if self.depth == 0:
            return {"draft_depth": 0}
        return {
            **({} if self.share is None else {"ctc_draft_share": self.share}),
            "lookahead": self.lookahead,
            "draft_depth": self.depth,
            "draft_width": self.width,
            "draft_budget": self.budget,
        }

    @property
    def shape(self) -> str:
        """All but who drafts, in words."""
        if self.depth == 0:
            return "-"
        parts = [f"depth {self.depth}", f"width {self.width}"]
        if self.lookahead != FIXED:
            parts[0] = f"lookahead {self.lookahead} to {self.depth}"
        if self.budget is not None:
            parts.append(f"budget {self.budget}")
        if self.share is not None:
            parts.append(f"share {self.share:g}")
        return ", ".join(parts)

    def __str__(self) -> str:
        return self.drafter if self.depth == 0 else f"{self.drafter}, {self.shape}"


NO_DRAFTS = DraftSetting("no drafts", 0)


def depths(kind: str, greedy: bool, num_heads: int, max_steps: int | None) -> list[int]:
    """Depths to try.

    Args:
        kind: Of the drafter, as the decode option calls it.
        greedy: Whether the search has one hypothesis.
        num_heads: K, as trained.
        max_steps: How far the proposer can go; None without limit.
    """
    if MODEL in kind.split("+"):
        return [*MODEL_DEPTHS]
    if kind in (CTC, CTC_HEADS):
        return [*(CTC_DEPTHS if greedy else CTC_BEAM_DEPTHS)]
    shares = DEPTH_SHARES + (DEPTH_SHARES_BEYOND if max_steps is None else ())
    found = {max(round(share * num_heads), 1) for share in shares}
    return sorted(depth for depth in found if max_steps is None or depth <= max_steps)


def widths(beam_size: int | None, chain_only: bool = False) -> list[int]:
    """Widths to try, the search's own among them.

    Args:
        beam_size: B of beam search; None for greedy search.
        chain_only: Whether the acceptance rule takes chains alone.
    """
    if chain_only:
        return [1]
    if beam_size is None:
        return [*GREEDY_WIDTHS]
    return sorted({max(round(share * beam_size), 1) for share in BEAM_WIDTH_SHARES})


def between(tried: Sequence[int], best: int, max_steps: int | None) -> list[int]:
    """Depths halfway to the neighbours of the best one; beyond it when it was the last.

    Args:
        tried: Depths, ascending.
        best: One of them.
        max_steps: How far the proposer can go; None without limit.
    """
    place = tried.index(best)
    below = tried[place - 1] if place > 0 else 0
    above = tried[place + 1] if place + 1 < len(tried) else 2 * best
    found = {(below + best + 1) // 2, (best + above) // 2} - {*tried}
    return sorted(depth for depth in found if max_steps is None or depth <= max_steps)


def with_budgets(setting: DraftSetting, most_nodes: int, least: int) -> list[DraftSetting]:
    """The same setting with budgets that would bind; with a wider one where its own did.

    A chain that is cut short is a shallower one: there are none for it.

    Args:
        setting: That has been tried.
        most_nodes: Nodes of the largest draft that it made.
        least: Nodes that the search itself asks for at most; drafts begin above.
    """
    if setting.width == 1:
        return []
    budgets = [round(share * most_nodes) for share in BUDGET_SHARES]
    if setting.budget is not None and most_nodes >= setting.budget:
        budgets.append(WIDER_BUDGET * setting.budget)
    return [replace(setting, budget=budget) for budget in budgets if budget > least]
