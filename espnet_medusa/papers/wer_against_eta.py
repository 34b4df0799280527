"""WER against decoder calls per word (the Speech-LLaMA paper's Fig. 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.patheffects import withStroke

from espnet_medusa.papers.drawing import COLORS, DASHES, MARKERS, legend_beside, ranks, save
from espnet_medusa.papers.figure_plan import WerAgainstEta
from espnet_medusa.papers.label_places import label_places
from espnet_medusa.papers.measured import Row
from espnet_medusa.papers.plan import TablePlan
from espnet_medusa.scoring.plots import STYLE

LABEL_DISTANCE = 9.0  # from a point to its label's middle, in points (1/72 inch)
HALO = withStroke(linewidth=2.0, foreground="white")  # for lines not to cross out labels
STEPS = 24  # places on a line that labels keep clear of


@dataclass(frozen=True)
class Point:
    """A system: its label, decoder calls per word, and WER in percent."""

    label: str
    eta: float
    wer: float


@dataclass(frozen=True)
class Panel:
    """A test set.

    Attributes:
        series: Points by group and variant.
        plain: What they are compared with, None where it was not run or scored.
    """

    series: Mapping[tuple[str, str], Sequence[Point]]
    plain: Point | None


def wer_eta_panels(table: TablePlan, rows: Sequence[Row]) -> dict[str, Panel]:
    """Panels by label of the test set; what was not run or scored is left out."""
    places = {
        (row.test_set, row.system): (row.eta.value, row.wer.value)
        for row in rows
        if row.eta and row.wer
    }
    panels = {}
    for test_set in table.test_sets.values():
        series = {
            (group, variant): [
                Point(label, *places[test_set, key])
                for label, key in systems.items()
                if (test_set, key) in places
            ]
            for group, variants in table.figure.groups.items()
            for variant, systems in variants.items()
        }
        series = {name: points for name, points in series.items() if points}
        plain = places.get((test_set, table.plain))
        if series:
            name = table.systems[table.plain].name
            panels[test_set] = Panel(series, Point(name, *plain) if plain else None)
    return panels


def plot_wer_against_eta(
    plan: WerAgainstEta, panels: Mapping[str, Panel], path: Path
) -> Path | None:
    """Draw one panel a test set.

    Args:
        plan: The figure's plan.
        panels: Of ``wer_eta_panels``.
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
        for axis, (label, panel) in zip(axes[0], panels.items(), strict=True):
            _draw_panel(axis, plan, panel)
            axis.set_title(label, fontsize=10)
            axis.set_xlabel("decoder calls per word (eta)")
        axes[0][0].set_ylabel("WER [%]")
        legend_beside(figure, axes[0])
        # Labels know their places once the axes have theirs.
        figure.draw_without_rendering()
        for axis, panel in zip(axes[0], panels.values(), strict=True):
            _write_labels(axis, plan, panel)
        return save(figure, path)


def _draw_panel(axis: "pyplot.Axes", plan: WerAgainstEta, panel: Panel) -> None:
    for (group, variant), (color, shape) in ranks(plan.groups).items():
        points = panel.series.get((group, variant), ())
        if points:
            axis.plot(
                *_places(points).T, color=COLORS[color % len(COLORS)], lw=1.0, markersize=5,
                marker=MARKERS[shape % len(MARKERS)], ls=DASHES[shape % len(DASHES)],
                label=f"{group}, {variant}",
            )  # fmt: skip
    if panel.plain:
        plain = panel.plain
        axis.axhline(plain.wer, color="0.4", lw=0.8, ls=(0, (1, 4)))
        axis.plot(plain.eta, plain.wer, "*", color="black", markersize=13, label=plain.label)
    axis.margins(0.1)


def _write_labels(axis: "pyplot.Axes", plan: WerAgainstEta, panel: Panel) -> None:
    pixels = axis.figure.dpi / 72
    lines = {
        name: axis.transData.transform(_places(points)) for name, points in panel.series.items()
    }
    obstacles = [_along(line) for line in lines.values()]
    if panel.plain:
        obstacles.append(axis.transData.transform(_places([panel.plain])))
    points = np.concatenate(list(lines.values()))
    places = label_places(points, np.concatenate(obstacles), LABEL_DISTANCE * pixels)
    offsets = iter((places - points) / pixels)
    styles = ranks(plan.groups)
    for name, members in panel.series.items():
        for point in members:
            axis.annotate(
                point.label, (point.eta, point.wer), next(offsets), textcoords="offset points",
                ha="center", va="center", fontsize=7.5, color=COLORS[styles[name][0] % len(COLORS)],
                path_effects=[HALO],
            )  # fmt: skip


def _places(points: Sequence[Point]) -> np.ndarray:
    return np.array([(point.eta, point.wer) for point in points])


def _along(line: np.ndarray) -> np.ndarray:
    """Places on a line through points of shape (n, 2), the points among them."""
    shares = np.linspace(0, 1, STEPS)[:, None]
    steps = [start + shares * (end - start) for start, end in zip(line, line[1:], strict=False)]
    return np.concatenate([line, *steps])
