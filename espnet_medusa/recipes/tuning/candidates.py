"""Choose the draft settings that the tuning times."""

from dataclasses import replace

from espnet_medusa.decoding.search.drafters import default_budget
from espnet_medusa.decoding.search.search_options import ACCEPTANCE, CTC, CTC_HEADS, FIXED, MODEL
from espnet_medusa.recipes.tuning.available import Drafter, DraftSetting
from espnet_medusa.recipes.tuning.trial import Task

LOOKAHEADS = (FIXED, ACCEPTANCE)  # auto is tuned while it decodes
DEPTH_SHARES = (0.25, 0.375, 0.5, 0.75, 1.0)  # of the number of heads
DEPTH_SHARES_BEYOND = (1.5, 2.0)  # for heads that can draft more steps than there are heads
MODEL_DEPTHS = (1, 2, 3, 4, 6, 8, 12)  # each step is a call of the draft model
CTC_DEPTHS = (5, 10, 15, 20, 30, 40, 60)  # a draft step takes no time; verifying a node does
CTC_BEAM_DEPTHS = (1, 2, 4, 6, 10, 15, 20)
BEAM_WIDTH_SHARES = (0.6, 1.0, 2.0)  # of the beam
GREEDY_WIDTHS = (1, 2, 4)
MIN_PROBABILITIES = (0.15, 0.3, 0.5)  # of greedy chains
BUDGET_SHARE = 0.5  # of the largest possible draft, or of a smaller default budget
WIDER_BUDGET = 2  # times the default budget, for drafts that exceed it


def candidates(task: Task, drafter: Drafter) -> list[list[DraftSetting]]:
    """Return the candidates of a drafter: a list of fixed depths, and one for the other lookahead.

    The latter needs exact acceptance: otherwise the text depends on the depths that it chooses.
    The greatest depth is also tried with several node budgets (see ``Strategy.best_first``). Greedy
    chains without CTC are also tried with several minimum probabilities, if drafts are verified.
    """
    greedy, num_heads = task.beam_size is None, task.search.decoder.num_heads
    tried = depths(drafter.kind, greedy, num_heads, drafter.first.max_steps)
    budget = default_budget(drafter.first, greedy)
    shapes = [
        DraftSetting(drafter.name, tried[-1], width, budget, share=share)
        for width in widths(task.beam_size, chain_only=task.unverified)
        for share in drafter.proposers
    ]
    fixed = [replace(shape, depth=depth) for depth in tried for shape in shapes]
    fixed += [other for shape in shapes for other in with_budgets(shape, task.beam_size or 1)]
    if greedy and not task.unverified and CTC not in drafter.kind.split("+"):
        chains = [shape for shape in shapes if shape.width == 1]
        fixed += [replace(chain, min_probability=p) for p in MIN_PROBABILITIES for chain in chains]
    adaptive = [[replace(shape, lookahead=ACCEPTANCE) for shape in shapes]] if task.exact else []
    return [fixed, *adaptive]


def depths(kind: str, greedy: bool, num_heads: int, max_steps: int | None) -> list[int]:
    """Return the depths to try, ascending, at most ``max_steps``."""
    if MODEL in kind.split("+"):
        return [*MODEL_DEPTHS]
    if kind in (CTC, CTC_HEADS):
        return [*(CTC_DEPTHS if greedy else CTC_BEAM_DEPTHS)]
    shares = DEPTH_SHARES + (DEPTH_SHARES_BEYOND if max_steps is None else ())
    rounded = {max(round(share * num_heads), 1) for share in shares}
    return sorted(depth for depth in rounded if max_steps is None or depth <= max_steps)


def widths(beam_size: int | None, chain_only: bool = False) -> list[int]:
    """Return the widths to try, ascending; ``beam_size`` None: greedy search."""
    if chain_only:
        return [1]
    if beam_size is None:
        return [*GREEDY_WIDTHS]
    return sorted({max(round(share * beam_size), 1) for share in BEAM_WIDTH_SHARES})


def with_budgets(setting: DraftSetting, least: int) -> list[DraftSetting]:
    """Return copies of a setting with node budgets above ``least`` that can change its drafts.

    A chain gets no budget, because a cut chain equals a chain of less depth.
    """
    largest, default = setting.depth * setting.width, setting.budget
    if setting.width == 1:
        return []
    budgets = [round(BUDGET_SHARE * largest)]
    if default is not None and largest > default:
        budgets = [round(BUDGET_SHARE * default), WIDER_BUDGET * default]
    return [replace(setting, budget=budget) for budget in budgets if budget > least]
