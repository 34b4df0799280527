"""Speedup against the number of tokens, in bins of equal width (the paper's Fig. 2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import pyplot

from espnet_medusa.report.figures.style import STYLE, legend_above, save
from espnet_medusa.report.measures.decodings import Decoding
from espnet_medusa.report.measures.table_rows import (
    common_utterances,
    find_decoding,
    full_size,
    shortfall,
)
from espnet_medusa.report.plan.published import Corpora
from espnet_medusa.report.plan.report_plan import TablePlan

FEWEST = 3  # utterances in a bin, to be drawn


@dataclass(frozen=True)
class LengthBin:
    """Speedups of the utterances with ``first`` to ``last`` tokens: quartiles and count."""

    first: int
    last: int
    count: int
    lower: float
    median: float
    upper: float


def bin_speedups(tokens: np.ndarray, speedups: np.ndarray, width: int) -> list[LengthBin]:
    """Bins from 0 on; those with fewer than ``FEWEST`` utterances are left out.

    Args:
        tokens: Tokens of each utterance, shape (n,).
        speedups: Its speedup, shape (n,).
        width: Tokens that a bin spans.
    """
    numbers = np.asarray(tokens) // width
    bins = []
    for number in np.unique(numbers):
        inside = np.asarray(speedups)[numbers == number]
        if len(inside) >= FEWEST:
            quartiles = np.percentile(inside, (25, 50, 75))
            first = int(number) * width
            bins.append(LengthBin(first, first + width - 1, len(inside), *map(float, quartiles)))
    return bins


def length_bins(decoding: Decoding, plain: Decoding, width: int) -> list[LengthBin]:
    """Bins of one decoding, by the tokens of plain decoding's text."""
    keys = [
        key
        for key in common_utterances(decoding, plain)
        if decoding.utterances[key].total_seconds > 0
    ]
    there = [plain.utterances[key] for key in keys]
    seconds = np.array([decoding.utterances[key].total_seconds for key in keys])
    speedups = np.array([statistics.total_seconds for statistics in there]) / seconds
    return bin_speedups(np.array([item.tokens for item in there], int), speedups, width)


def speedup_panels(
    table: TablePlan, decodings: Sequence[Decoding], corpora: Corpora
) -> dict[str, dict[str, list[LengthBin]]]:
    """What the figure shows: label of the test set to name of the system to bins.

    Test sets that were not decoded in full, and systems without bins, are left out.
    """
    panels: dict[str, dict[str, list[LengthBin]]] = {}
    for test_set, label in table.test_sets.items():
        size = full_size(table, label, corpora)
        plain = find_decoding(decodings, table.systems[table.plain], test_set, label)
        if shortfall(table, plain, size):
            continue
        series = {}
        for key in table.figure.systems:
            system = table.systems[key]
            decoding = find_decoding(decodings, system, test_set, label)
            if not shortfall(table, decoding, size):
                series[system.name] = length_bins(decoding, plain, table.figure.bin_tokens)
        series = {name: bins for name, bins in series.items() if bins}
        if series:
            panels[label] = series
    return panels


def plot_speedup_by_length(
    panels: Mapping[str, Mapping[str, Sequence[LengthBin]]], path: Path
) -> Path | None:
    """Draw one panel a test set.

    Args:
        panels: Of ``speedup_panels``.
        path: PNG to write.

    Returns:
        The PNG, None without panels.
    """
    if not panels:
        return None
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    colors = dict(zip(names, pyplot.get_cmap("tab10").colors * len(names), strict=False))
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            1, len(panels), figsize=(6.5 * len(panels), 4.2), layout="constrained",
            sharey=True, squeeze=False,
        )  # fmt: skip
        for axis, (label, series) in zip(axes[0], panels.items(), strict=True):
            _draw_panel(axis, series, colors)
            axis.set_title(label, fontsize=10)
        axes[0][0].set_ylabel("speedup over plain decoding")
        axes[0][0].set_ylim(bottom=0)
        legend_above(figure, axes[0])
        return save(figure, path)


def _draw_panel(
    axis: "pyplot.Axes", series: Mapping[str, Sequence[LengthBin]], colors: Mapping[str, tuple]
) -> None:
    counts: dict[tuple[int, int], int] = {}
    for bins in series.values():
        for entry in bins:
            place = entry.first, entry.last
            counts[place] = max(counts.get(place, 0), entry.count)
    places = {place: number for number, place in enumerate(sorted(counts))}
    for index, (name, bins) in enumerate(series.items()):
        # Side by side, for bars of several systems not to cover each other.
        aside = 0.12 * (index - (len(series) - 1) / 2)
        x = [places[entry.first, entry.last] + aside for entry in bins]
        median = np.array([entry.median for entry in bins])
        below = median - [entry.lower for entry in bins]
        above = np.array([entry.upper for entry in bins]) - median
        axis.errorbar(
            x, median, yerr=[below, above], fmt="o-", markersize=4, capsize=3, label=name,
            color=colors[name],
        )  # fmt: skip
    axis.axhline(1.0, color="black", lw=0.8, ls=":")
    labels = [f"{first}-{last}\nn={counts[first, last]}" for first, last in sorted(counts)]
    axis.set_xticks(range(len(labels)), labels, fontsize=8)
    axis.set_xlabel("tokens of the utterance")
