"""Draw the figure of a table: speedup by length, calls per word, or a scatter plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import pyplot

from espnet_medusa.recipes.report.decodings import DecodedSet
from espnet_medusa.recipes.report.measures import Estimate, common_values
from espnet_medusa.recipes.report.plan import CALLS_PER_WORD, SPEEDUP_BY_LENGTH, TablePlan
from espnet_medusa.recipes.report.rows import SystemRow
from espnet_medusa.recipes.report.scatter import plot_scatter, scatter_panels
from espnet_medusa.recipes.report.style import COLORS, HATCHES, add_legend, ranks, save

FEWEST = 3  # minimum number of utterances in a bin
BARS_WIDTH = 0.85  # of all bars of a test set; the rest is space
BAR_INCHES = 0.5


def draw_figure(table: TablePlan, rows: Sequence[SystemRow], path: Path) -> Path | None:
    """Draw the figure of a table that has one, and return the PNG; None if it would be empty."""
    if table.figure.kind == SPEEDUP_BY_LENGTH:
        return plot_speedup_by_length(speedup_panels(table, rows), path)
    if table.figure.kind == CALLS_PER_WORD:
        return plot_calls_per_word(list(table.test_sets.values()), eta_bars(table, rows), path)
    return plot_scatter(table.figure, scatter_panels(table, rows), path)


@dataclass(frozen=True)
class LengthBin:
    """Count and speedup quartiles of the utterances with ``first`` to ``last`` tokens."""

    first: int
    last: int
    count: int
    lower: float
    median: float
    upper: float


def bin_speedups(tokens: np.ndarray, speedups: np.ndarray, width: int) -> list[LengthBin]:
    """Return bins of tokens and speedups, (n,) each, with ``FEWEST`` utterances or more."""
    numbers = tokens // width
    bins = []
    for number in np.unique(numbers):
        inside = speedups[numbers == number]
        if len(inside) >= FEWEST:
            quartiles = np.percentile(inside, (25, 50, 75))
            first = int(number) * width
            bins.append(LengthBin(first, first + width - 1, len(inside), *map(float, quartiles)))
    return bins


def length_bins(decoding: DecodedSet, baseline: DecodedSet, width: int) -> list[LengthBin]:
    """Return bins of a decoding by the tokens of the baseline's text."""
    _, tokens = common_values(decoding, baseline, "tokens")
    seconds, expected = common_values(decoding, baseline, "total_seconds")
    known = (tokens > 0) & (seconds > 0) & (expected > 0)
    return bin_speedups(tokens[known], expected[known] / seconds[known], width)


def speedup_panels(
    table: TablePlan, rows: Sequence[SystemRow]
) -> dict[str, dict[str, list[LengthBin]]]:
    """Return bins by label of the test set and name of the system.

    Test sets that were not decoded in full, and systems without bins, are left out.
    """
    panels: dict[str, dict[str, list[LengthBin]]] = {}
    for label in table.test_sets.values():
        full = {r.system: r.decoding for r in rows if r.test_set == label and not r.absent}
        for key in table.figure.systems:
            if key in full and table.baseline in full:
                bins = length_bins(full[key], full[table.baseline], table.figure.bin_tokens)
                if bins:
                    panels.setdefault(label, {})[table.systems[key].name] = bins
    return panels


def plot_speedup_by_length(
    panels: Mapping[str, Mapping[str, Sequence[LengthBin]]], path: Path
) -> Path | None:
    """Draw a panel for each test set (Whisper-Medusa, Fig. 2); None without panels."""
    if not panels:
        return None
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    colors = dict(zip(names, COLORS * len(names), strict=False))
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(6.5 * len(panels), 4.2), sharey=True, squeeze=False
    )
    for axis, (label, series) in zip(axes[0], panels.items(), strict=True):
        _draw_lengths(axis, series, colors)
        axis.set_title(label, fontsize=10)
    axes[0][0].set(ylabel="speedup over the baseline", ylim=(0, None))
    add_legend(figure, axes[0], columns=4)
    return save(figure, path)


def _draw_lengths(
    axis: "pyplot.Axes", series: Mapping[str, Sequence[LengthBin]], colors: Mapping[str, tuple]
) -> None:
    entries = [entry for bins in series.values() for entry in bins]
    spans = sorted({(entry.first, entry.last) for entry in entries})
    for index, (name, bins) in enumerate(series.items()):
        # Bars of several systems are side by side.
        aside = 0.12 * (index - (len(series) - 1) / 2)
        x = [spans.index((entry.first, entry.last)) + aside for entry in bins]
        lower, median, upper = np.array([(e.lower, e.median, e.upper) for e in bins]).T
        axis.errorbar(
            x, median, yerr=[median - lower, upper - median], fmt="o-", markersize=4, capsize=3,
            label=name, color=colors[name],
        )  # fmt: skip
    axis.axhline(1.0, color="black", lw=0.8, ls=":")
    labels = [
        f"{first}-{last}\nn={max(entry.count for entry in entries if entry.first == first)}"
        for first, last in spans
    ]
    axis.set_xticks(range(len(labels)), labels, fontsize=8)
    axis.set_xlabel("tokens of the utterance")


@dataclass(frozen=True)
class Bars:
    """Bars of a system: eta by label of the test set, if it was run and scored."""

    name: str
    color: str | tuple[float, float, float]
    hatch: str
    values: Mapping[str, Estimate]


def eta_bars(table: TablePlan, rows: Sequence[SystemRow]) -> list[Bars]:
    """Return the baseline's bars, then those of the plan's groups, without empty ones."""
    values: dict[str, dict[str, Estimate]] = {}
    for row in rows:
        if eta := row.values.get("eta"):
            values.setdefault(row.system, {})[row.test_set] = eta
    groups, baseline = table.figure.groups, table.baseline
    bars = [Bars(table.systems[baseline].name, "0.55", "", values.get(baseline, {}))]
    for (group, variant), (color, shape) in ranks(groups).items():
        style = COLORS[color % len(COLORS)], HATCHES[shape % len(HATCHES)]
        bars.append(Bars(f"{group}, {variant}", *style, values.get(groups[group][variant], {})))
    return [entry for entry in bars if entry.values]


def plot_calls_per_word(test_sets: Sequence[str], bars: Sequence[Bars], path: Path) -> Path | None:
    """Draw ``eta_bars`` for each test set (Speech-LLaMA, Fig. 5); None without bars."""
    test_sets = [label for label in test_sets if any(label in entry.values for entry in bars)]
    if not test_sets:
        return None
    width = BARS_WIDTH / len(bars)
    inches = max(6.0, BAR_INCHES * len(bars) * len(test_sets) / BARS_WIDTH + 3)
    figure, axis = pyplot.subplots(figsize=(inches, 4.2))
    for number, entry in enumerate(bars):
        aside = width * (number - (len(bars) - 1) / 2)
        sets = enumerate(test_sets)
        shown = {n + aside: entry.values[label] for n, label in sets if label in entry.values}
        places, estimates = [*shown], shown.values()
        heights = np.array([estimate.value for estimate in estimates])
        ends = [(e.value, e.value) if e.low is None else (e.low, e.high) for e in estimates]
        low, high = np.array(ends).T
        errors = np.maximum([heights - low, high - heights], 0.0)
        style = {"hatch": entry.hatch, "edgecolor": "white", "linewidth": 0.5}
        axis.bar(places, heights, width, label=entry.name, color=entry.color, **style)
        style = {"fmt": "none", "ecolor": "black", "elinewidth": 0.9, "capsize": 2}
        axis.errorbar(places, heights, yerr=errors, **style)
        for place, value, above in zip(places, heights, errors[1], strict=True):
            axis.annotate(
                f"{value:.2f}", (place, value + above), (0, 3), textcoords="offset points",
                ha="center", va="bottom", fontsize=7.5,
            )  # fmt: skip
    axis.set(ylabel="decoder calls per word (eta)", axisbelow=True)
    axis.set_xticks(range(len(test_sets)), test_sets)
    axis.grid(axis="x", visible=False)
    axis.margins(y=0.08)
    add_legend(figure, [axis])
    return save(figure, path)
