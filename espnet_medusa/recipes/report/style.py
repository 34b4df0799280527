"""The style of figures: colors and markers, legend, file."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib
from matplotlib import pyplot

from espnet_medusa.data.files.atomic import naming

matplotlib.use("Agg")  # No display needed.
matplotlib.rcParams |= {
    "figure.dpi": 130,
    "figure.constrained_layout.use": True,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
COLORS = pyplot.get_cmap("tab10").colors
MARKERS = "osD^vPX"
DASHES = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xxx", "\\\\\\")


def ranks(groups: Mapping[str, Mapping[str, object]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the numbers of each group (color) and variant (marker), in the plan's order."""
    variants = list(dict.fromkeys(name for members in groups.values() for name in members))
    return {
        (group, name): (number, variants.index(name))
        for number, (group, members) in enumerate(groups.items())
        for name in members
    }


def add_legend(
    figure: "pyplot.Figure", axes: Iterable["pyplot.Axes"], columns: int | None = None
) -> None:
    """Add one legend for all axes: on the right, or above them in ``columns``."""
    handles = {}
    for axis in axes:
        handles.update(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    place = {"loc": "outside right center"}
    if columns is not None:
        place = {"loc": "outside upper center", "ncols": min(columns, len(handles))}
    figure.legend(handles.values(), handles.keys(), **place)


def save(figure: "pyplot.Figure", path: Path) -> Path:
    """Write the PNG, close the figure, and return the path; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
    return path
