"""Decoder calls per word by test set, such as by language (the Speech-LLaMA paper's Fig. 5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import pyplot

from espnet_medusa.report.figures.style import COLORS, HATCHES, STYLE, legend_beside, ranks, save
from espnet_medusa.report.measures.bootstrap import Estimate
from espnet_medusa.report.measures.table_rows import Row
from espnet_medusa.report.plan.report_plan import TablePlan

ROOM = 0.85  # share of a test set's room that bars fill
BAR = 0.5  # inches a bar


@dataclass(frozen=True)
class Bars:
    """One system's bars.

    Attributes:
        name: As shown.
        color: Matplotlib's.
        hatch: Matplotlib's.
        values: Eta by label of the test set; where it was not run or scored there is none.
    """

    name: str
    color: str | tuple[float, float, float]
    hatch: str
    values: Mapping[str, Estimate]


def eta_bars(table: TablePlan, rows: Sequence[Row]) -> list[Bars]:
    """Plain decoding's bars, then those of the plan's groups; systems without any are left out."""
    values: dict[str, dict[str, Estimate]] = {}
    for row in rows:
        if row.eta:
            values.setdefault(row.system, {})[row.test_set] = row.eta
    groups, plain = table.figure.groups, table.plain
    bars = [Bars(table.systems[plain].name, "0.55", "", values.get(plain, {}))]
    for (group, variant), (color, shape) in ranks(groups).items():
        style = COLORS[color % len(COLORS)], HATCHES[shape % len(HATCHES)]
        bars.append(Bars(f"{group}, {variant}", *style, values.get(groups[group][variant], {})))
    return [entry for entry in bars if entry.values]


def plot_calls_per_word(test_sets: Sequence[str], bars: Sequence[Bars], path: Path) -> Path | None:
    """Draw the test sets side by side, a bar for each system.

    Args:
        test_sets: Labels.
        bars: Of ``eta_bars``.
        path: PNG to write.

    Returns:
        The PNG, None without bars.
    """
    test_sets = [label for label in test_sets if any(label in entry.values for entry in bars)]
    if not test_sets:
        return None
    width = ROOM / len(bars)
    inches = max(6.0, BAR * len(bars) * len(test_sets) / ROOM + 3)
    with pyplot.rc_context(STYLE):
        figure, axis = pyplot.subplots(figsize=(inches, 4.2), layout="constrained")
        for number, entry in enumerate(bars):
            places = [place for place, label in enumerate(test_sets) if label in entry.values]
            aside = width * (number - (len(bars) - 1) / 2)
            _draw_bars(axis, np.array(places) + aside, [test_sets[n] for n in places], entry, width)
        axis.set_xticks(range(len(test_sets)), test_sets)
        axis.set_ylabel("decoder calls per word (eta)")
        axis.grid(axis="x", visible=False)
        axis.set_axisbelow(True)
        axis.margins(y=0.08)
        legend_beside(figure, [axis])
        return save(figure, path)


def _draw_bars(
    axis: "pyplot.Axes", places: np.ndarray, labels: Sequence[str], entry: Bars, width: float
) -> None:
    estimates = [entry.values[label] for label in labels]
    heights = [estimate.value for estimate in estimates]
    errors = np.array([_reach(estimate) for estimate in estimates]).T
    axis.bar(
        places, heights, width, color=entry.color, hatch=entry.hatch, edgecolor="white",
        linewidth=0.5, label=entry.name,
    )  # fmt: skip
    axis.errorbar(
        places, heights, yerr=errors, fmt="none", ecolor="black", elinewidth=0.9, capsize=2,
    )  # fmt: skip
    for place, value, above in zip(places, heights, errors[1], strict=True):
        axis.annotate(
            f"{value:.2f}", (place, value + above), (0, 3), textcoords="offset points",
            ha="center", va="bottom", fontsize=7.5,
        )  # fmt: skip


def _reach(estimate: Estimate) -> tuple[float, float]:
    """How far the interval reaches below and above the value."""
    if estimate.low is None:
        return 0.0, 0.0
    return max(estimate.value - estimate.low, 0.0), max(estimate.high - estimate.value, 0.0)
