"""Tokens a call against the hours of speech that drafters learnt from, of `who_drafts.py`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from matplotlib import pyplot

from espnet_medusa.report.measures import Estimate
from espnet_medusa.report.style import COLORS, MARKERS, STYLE, legend_above, save

PANEL = 3.6  # inches


class Point(Protocol):
    """A row of the table."""

    search: str
    curve: str
    hours: float
    tokens_per_call: Estimate


def plot_curves(points: Sequence[Point], path: Path) -> None:
    """A line for each curve, a panel for each search."""
    searches = dict.fromkeys(point.search for point in points)
    curves = dict.fromkeys(point.curve for point in points)
    hours = sorted({point.hours for point in points})
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            1, len(searches), figsize=(PANEL * len(searches) + 1.0, PANEL + 0.6), squeeze=False,
            sharey=True, layout="constrained",
        )  # fmt: skip
        for axis, search in zip(axes[0], searches, strict=True):
            for number, curve in enumerate(curves):
                found = [
                    point for point in points if (point.search, point.curve) == (search, curve)
                ]
                _plot_curve(axis, curve, sorted(found, key=lambda point: point.hours), number)
            axis.set_title(search, fontsize="medium")
            axis.set_xlabel("hours of training speech")
            axis.set_xscale("log")
            axis.set_xticks(hours, [f"{one:g}" for one in hours])
            axis.set_xticks([], minor=True)
            axis.set_ylim(bottom=1)  # no drafts
        axes[0, 0].set_ylabel("tokens a call")
        legend_above(figure, axes.flat)
        save(figure, path)


def _plot_curve(axis: pyplot.Axes, curve: str, points: Sequence[Point], number: int) -> None:
    """With its intervals where there are any."""
    hours = [point.hours for point in points]
    estimates = [point.tokens_per_call for point in points]
    color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    axis.plot(hours, [one.value for one in estimates], color=color, marker=marker, label=curve)
    if all(one.low is not None for one in estimates):
        low, high = [one.low for one in estimates], [one.high for one in estimates]
        axis.fill_between(hours, low, high, color=color, alpha=0.15, lw=0)
