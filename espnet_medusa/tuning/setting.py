"""Settings of drafting, and which of them are worth a try."""

from collections.abc import Sequence
from dataclasses import dataclass

DEPTH_SHARES = (0.25, 0.5, 1.0)  # of the heads
DEPTH_SHARES_BEYOND = (1.5, 2.0)  # where a surrogate can go on
BEAM_WIDTH_SHARES = (0.6, 1.0, 2.0)  # of the beam
GREEDY_WIDTHS = (1, 2, 4)
BUDGET_SHARES = (0.4, 0.7)  # of the largest draft without budget


@dataclass(frozen=True)
class DraftSetting:
    """What the tuning chooses.

    Attributes:
        depth: Steps drafted ahead; 0 drafts nothing.
        width: Hypotheses drafted.
        budget: Most nodes of an utterance in a decoder call; None without limit.
    """

    depth: int
    width: int = 1
    budget: int | None = None

    def options(self) -> dict[str, int | None]:
        """As keys of a decode config."""
        if self.depth == 0:
            return {"draft_depth": 0}
        return {
            "draft_depth": self.depth,
            "draft_width": self.width,
            "draft_budget": self.budget,
        }

    def __str__(self) -> str:
        if self.depth == 0:
            return "no drafts"
        limit = "" if self.budget is None else f", budget {self.budget}"
        return f"depth {self.depth}, width {self.width}{limit}"


NO_DRAFTS = DraftSetting(0)


def depths(num_heads: int, max_steps: int | None) -> list[int]:
    """Depths to try.

    Args:
        num_heads: K, as trained.
        max_steps: How far the surrogate can go; None without limit.
    """
    shares = DEPTH_SHARES + (DEPTH_SHARES_BEYOND if max_steps is None else ())
    found = {max(round(share * num_heads), 1) for share in shares}
    return sorted(depth for depth in found if max_steps is None or depth <= max_steps)


def widths(beam_size: int | None, chain_only: bool = False) -> list[int]:
    """Widths to try.

    Args:
        beam_size: B of beam search; None for greedy search.
        chain_only: Whether the acceptance rule takes chains alone.
    """
    if chain_only:
        return [1]
    if beam_size is None:
        return [*GREEDY_WIDTHS]
    return sorted({max(round(share * beam_size), 1) for share in BEAM_WIDTH_SHARES})


def grid(depths: Sequence[int], widths: Sequence[int]) -> list[DraftSetting]:
    """All depths with all widths, no budget."""
    return [DraftSetting(depth, width) for depth in depths for width in widths]


def between(tried: Sequence[int], best: int, max_steps: int | None) -> list[int]:
    """Depths halfway to the neighbours of the best one; beyond it when it was the last.

    Args:
        tried: Depths, ascending.
        best: One of them.
        max_steps: How far the surrogate can go; None without limit.
    """
    place = tried.index(best)
    below = tried[place - 1] if place > 0 else 0
    above = tried[place + 1] if place + 1 < len(tried) else 2 * best
    found = {(below + best + 1) // 2, (best + above) // 2} - {*tried}
    return sorted(depth for depth in found if max_steps is None or depth <= max_steps)


def with_budgets(
    settings: Sequence[DraftSetting], most_nodes: Sequence[int], least: int
) -> list[DraftSetting]:
    """The same settings with budgets that would bind.

    Args:
        settings: Without budget.
        most_nodes: Nodes of the largest draft that each of them made.
        least: Nodes that the search itself asks for at most; drafts begin above.

    Returns:
        Settings, none of them twice.
    """
    found = [
        DraftSetting(setting.depth, setting.width, round(share * most))
        for setting, most in zip(settings, most_nodes, strict=True)
        for share in BUDGET_SHARES
        if round(share * most) > least
    ]
    return [*dict.fromkeys(found)]
