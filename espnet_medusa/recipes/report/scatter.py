"""Draw scatter plots: one measure against another (such as the Speech-LLaMA paper's Fig. 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import textalloc
from matplotlib import pyplot
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from espnet_medusa.recipes.report.plan import CALLS_AGAINST_WER, CallsAndWer, FigurePlan, TablePlan
from espnet_medusa.recipes.report.rows import SystemRow
from espnet_medusa.recipes.report.style import COLORS, DASHES, MARKERS, add_legend, ranks, save

# Distance from a point to its label, and margin around drawn objects, in panel widths.
LABEL_DISTANCE, LABEL_MARGIN = 0.01, 0.004
# Directions of labels, the preferred ones first: a label above or below is clearly its point's.
DIRECTIONS = ["north", "south", "northeast", "southeast", "northwest", "southwest", "east", "west"]
HALO = withStroke(linewidth=2.0, foreground="white")  # keeps labels legible on lines
LOG_SPAN = 8.0  # ratio of the largest to the smallest value, for a logarithmic axis


@dataclass(frozen=True)
class Axis:
    measure: str  # name in ``COLUMNS``
    label: str  # as shown; fields of the plan in braces
    value: str = "value"  # field of the measure
    may_be_log: bool = False  # whether a wide range of values makes the axis logarithmic

    def of(self, row: SystemRow | None) -> float | None:
        measured = None if row is None else row.values.get(self.measure)
        return measured and getattr(measured, self.value)


WER = Axis("wer", "WER [%]")
ETA = Axis("eta", "decoder calls per word (eta)")
LATENCY = Axis("latency", "ms per utterance (median)", value="median", may_be_log=True)
DRAFT_WER = Axis("wer", "WER of {wer_of} [%]")
CALLS = Axis("calls_per_utterance", "decoder calls per utterance", may_be_log=True)
AXES = {  # horizontal and vertical, by kind of figure
    "wer_against_eta": (ETA, WER),
    "wer_against_latency": (LATENCY, WER),
    "wer_against_calls": (CALLS, WER),
    CALLS_AGAINST_WER: (DRAFT_WER, CALLS),
}
WITHOUT_LINES = "wer_against_latency"  # kind of figure whose points are not connected


@dataclass(frozen=True)
class Point:
    """A system's label and coordinates; x is None if it has none."""

    label: str
    x: float | None
    y: float


@dataclass(frozen=True)
class Panel:
    series: Mapping[tuple[str, str], Sequence[Point]]  # points by group and variant
    baseline: Point | None  # the baseline; None: not decoded or not scored

    @property
    def points(self) -> list[Point]:
        """All points without the baseline."""
        return [point for members in self.series.values() for point in members]


def scatter_panels(table: TablePlan, rows: Sequence[SystemRow]) -> dict[str, Panel]:
    """Return panels by label of the test set, without systems that were not run or scored."""
    panels = {}
    for test_set in table.test_sets.values():
        measured = {row.system: row for row in rows if row.test_set == test_set}
        series = {
            (group, variant): _points(table.figure, systems, measured)
            for group, variants in table.figure.groups.items()
            for variant, systems in variants.items()
        }
        series = {name: points for name, points in series.items() if points}
        if series:
            panels[test_set] = Panel(series, _baseline(table, measured))
    return panels


def _points(
    plan: FigurePlan, systems: Mapping[str, str | CallsAndWer], rows: Mapping[str, SystemRow]
) -> list[Point]:
    (horizontal, vertical), points = AXES[plan.kind], []
    for label, system in systems.items():
        across, up = (system.wer, system.calls) if isinstance(system, CallsAndWer) else [system] * 2
        x, y = horizontal.of(rows.get(across)), vertical.of(rows.get(up))
        if x is not None and y is not None:
            points.append(Point(label, x, y))
    return points


def _baseline(table: TablePlan, rows: Mapping[str, SystemRow]) -> Point | None:
    x, y = (axis.of(rows.get(table.baseline)) for axis in AXES[table.figure.kind])
    # The baseline has no drafts, so it has no WER of drafts.
    has_place = table.figure.kind != CALLS_AGAINST_WER
    if y is None or (has_place and x is None):
        return None
    return Point(table.systems[table.baseline].name, x if has_place else None, y)


def plot_scatter(plan: FigurePlan, panels: Mapping[str, Panel], path: Path) -> Path | None:
    """Draw ``scatter_panels``, one for each test set, and return the PNG; None without panels."""
    if not panels:
        return None
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(6.0 * len(panels) + 2, 5.5), squeeze=False
    )
    horizontal, vertical = AXES[plan.kind]
    points = [
        p for panel in panels.values() for p in (*panel.points, panel.baseline) if p is not None
    ]
    for axis, (label, panel) in zip(axes[0], panels.items(), strict=True):
        _draw_panel(axis, plan, panel)
        axis.set_title(label, fontsize=10)
        axis.set_xlabel(horizontal.label.format_map(vars(plan)))
        _scale(axis, "x", horizontal, [p.x for p in points if p.x is not None])
        _scale(axis, "y", vertical, [p.y for p in points])
    axes[0][0].set_ylabel(vertical.label.format_map(vars(plan)))
    add_legend(figure, axes[0])
    # Labels are placed after the layout of the axes is final.
    figure.draw_without_rendering()
    for axis, panel in zip(axes[0], panels.values(), strict=True):
        _write_labels(axis, plan, panel)
    return save(figure, path)


def _scale(axis: "pyplot.Axes", name: str, shown: Axis, values: Sequence[float]) -> None:
    """Make the axis logarithmic if the values have a wide range."""
    if shown.may_be_log and min(values) > 0 and max(values) > LOG_SPAN * min(values):
        axis.set(**{f"{name}scale": "log"})
        ticks = getattr(axis, f"{name}axis")
        ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ticks.set_major_formatter(ScalarFormatter())
        ticks.set_minor_formatter(NullFormatter())


def _draw_panel(axis: "pyplot.Axes", plan: FigurePlan, panel: Panel) -> None:
    dashes = ("",) if plan.kind == WITHOUT_LINES else DASHES
    for (group, variant), (color, shape) in ranks(plan.groups).items():
        points = panel.series.get((group, variant), ())
        if points:
            axis.plot(
                *_places(points).T, color=COLORS[color % len(COLORS)], lw=1.0, markersize=5,
                marker=MARKERS[shape % len(MARKERS)], ls=dashes[shape % len(dashes)],
                label=f"{group}, {variant}",
            )  # fmt: skip
    if baseline := panel.baseline:
        level = {"label": baseline.label} if baseline.x is None else {}
        axis.axhline(baseline.y, color="0.4", lw=0.8, ls=(0, (1, 4)), **level)
        if baseline.x is not None:
            axis.plot(
                baseline.x, baseline.y, "*", color="black", markersize=13, label=baseline.label
            )
    axis.margins(0.1, 0.15)


def _write_labels(axis: "pyplot.Axes", plan: FigurePlan, panel: Panel) -> None:
    """Write labels near their points without overlap, each with a line to its point."""
    axis.set_autoscale_on(False)  # labels and their lines must not change the limits
    styles = ranks(plan.groups)
    colors = [
        COLORS[styles[name][0] % len(COLORS)]
        for name, members in panel.series.items()
        for _ in members
    ]
    points, baseline = panel.points, panel.baseline
    taken = [*points, baseline] if baseline is not None and baseline.x is not None else points
    lines = [_places(members) for members in panel.series.values() if len(members) > 1]
    joined = [] if plan.kind == WITHOUT_LINES else lines
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
