"""Draws the figures of points: lines, labels beside the points, plain decoding."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import textalloc
from matplotlib import pyplot
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from espnet_medusa.report.figures.scatter import LAYOUTS, Axis, Panel, Point
from espnet_medusa.report.figures.style import (
    COLORS,
    DASHES,
    MARKERS,
    STYLE,
    legend_beside,
    ranks,
    save,
)
from espnet_medusa.report.plan.figure_plan import ScatterPlan

# Shares of the panel's width: from a point to its label, and around whatever is drawn.
LABEL_DISTANCE, LABEL_MARGIN = 0.01, 0.004
# Where labels go, if they can: above and below it is plain whose they are.
DIRECTIONS = ["north", "south", "northeast", "southeast", "northwest", "southwest", "east", "west"]
HALO = withStroke(linewidth=2.0, foreground="white")  # for lines not to cross out labels
LOG_SPAN = 8.0  # how many times the least value the greatest is, for a logarithmic axis


def plot_scatter(plan: ScatterPlan, panels: Mapping[str, Panel], path: Path) -> Path | None:
    """Draw one panel a test set.

    Args:
        plan: The figure's plan.
        panels: Of ``scatter_panels``.
        path: PNG to write.

    Returns:
        The PNG, None without panels.
    """
    if not panels:
        return None
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            1,
            len(panels),
            figsize=(6.0 * len(panels) + 2, 5.5),
            layout="constrained",
            squeeze=False,
        )
        layout = LAYOUTS[type(plan)]
        points = [point for panel in panels.values() for point in _all_points(panel)]
        for axis, (label, panel) in zip(axes[0], panels.items(), strict=True):
            _draw_panel(axis, plan, panel)
            axis.set_title(label, fontsize=10)
            axis.set_xlabel(layout.horizontal.label.format_map(vars(plan)))
            _scale(axis, "x", layout.horizontal, [p.x for p in points if p.x is not None])
            _scale(axis, "y", layout.vertical, [p.y for p in points])
        axes[0][0].set_ylabel(layout.vertical.label.format_map(vars(plan)))
        legend_beside(figure, axes[0])
        # Labels know their places once the axes have theirs.
        figure.draw_without_rendering()
        for axis, panel in zip(axes[0], panels.values(), strict=True):
            _write_labels(axis, plan, panel)
        return save(figure, path)


def _all_points(panel: Panel) -> list[Point]:
    points = [point for members in panel.series.values() for point in members]
    return points + [panel.plain] * (panel.plain is not None)


def _scale(axis: "pyplot.Axes", name: str, shown: Axis, values: Sequence[float]) -> None:
    """A logarithmic axis where the values lie far apart."""
    if shown.may_be_log and min(values) > 0 and max(values) > LOG_SPAN * min(values):
        axis.set(**{f"{name}scale": "log"})
        ticks = getattr(axis, f"{name}axis")
        ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ticks.set_major_formatter(ScalarFormatter())
        ticks.set_minor_formatter(NullFormatter())


def _draw_panel(axis: "pyplot.Axes", plan: ScatterPlan, panel: Panel) -> None:
    dashes = DASHES if LAYOUTS[type(plan)].lines else ("",)
    for (group, variant), (color, shape) in ranks(plan.groups).items():
        points = panel.series.get((group, variant), ())
        if points:
            axis.plot(
                *_places(points).T, color=COLORS[color % len(COLORS)], lw=1.0, markersize=5,
                marker=MARKERS[shape % len(MARKERS)], ls=dashes[shape % len(dashes)],
                label=f"{group}, {variant}",
            )  # fmt: skip
    plain = panel.plain
    if plain:
        level = {"label": plain.label} if plain.x is None else {}
        axis.axhline(plain.y, color="0.4", lw=0.8, ls=(0, (1, 4)), **level)
        if plain.x is not None:
            axis.plot(plain.x, plain.y, "*", color="black", markersize=13, label=plain.label)
    axis.margins(0.1, 0.15)


def _write_labels(axis: "pyplot.Axes", plan: ScatterPlan, panel: Panel) -> None:
    """Labels beside their points, clear of all points and lines, with a line to their own."""
    axis.set_autoscale_on(False)  # labels and their lines move no limits
    styles = ranks(plan.groups)
    colors = [
        COLORS[styles[name][0] % len(COLORS)]
        for name, members in panel.series.items()
        for _ in members
    ]
    points = [point for members in panel.series.values() for point in members]
    taken = [point for point in _all_points(panel) if point.x is not None]
    lines = [_places(members) for members in panel.series.values() if len(members) > 1]
    joined = lines if LAYOUTS[type(plan)].lines else []
    textalloc.allocate(
        axis, *_places(points).T, [point.label for point in points],
        x_scatter=_places(taken)[:, 0], y_scatter=_places(taken)[:, 1],
        x_lines=[line[:, 0] for line in joined] or None,
        y_lines=[line[:, 1] for line in joined] or None,
        min_distance=LABEL_DISTANCE, margin=LABEL_MARGIN, direction=DIRECTIONS, textsize=7.5,
        textcolor=colors, linecolor=colors, linewidth=0.5, avoid_label_lines_overlap=True,
        avoid_crossing_label_lines=True, path_effects=[HALO],
    )  # fmt: skip


def _places(points: Sequence[Point]) -> np.ndarray:
    return np.array([(point.x, point.y) for point in points])
