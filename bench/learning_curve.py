"""Tokens a call against the hours of speech that drafters learnt from, of `who_drafts.py`.

    cd egs/librispeech/asr1 && python ../../../bench/learning_curve.py \\
        results/learning_curve_base.json --output results/learning_curve_base.png

Drafters of the plan that have `curve` and `hours` are points; each search has a panel.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot

from espnet_medusa.bin.command_line import run_main
from espnet_medusa.errors import InputError
from espnet_medusa.report.figures.style import COLORS, MARKERS, STYLE, legend_above, save

PANEL = 3.6  # inches


def read_points(path: Path) -> list[dict]:
    """Rows with hours, of a result.

    Raises:
        InputError: There is none.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        points = [row for row in rows if row["hours"] is not None]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {error}; give the .json that who_drafts.py wrote") from error
    if not points:
        raise InputError(f"{path}: no drafter has curve and hours; add them to the plan")
    return points


def plot_curves(points: Sequence[dict], path: Path) -> None:
    """A line for each curve, a panel for each search."""
    searches = dict.fromkeys(point["search"] for point in points)
    curves = dict.fromkeys(point["curve"] for point in points)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            1, len(searches), figsize=(PANEL * len(searches) + 1.0, PANEL + 0.6), squeeze=False,
            sharey=True, layout="constrained",
        )  # fmt: skip
        for axis, search in zip(axes[0], searches, strict=True):
            for number, curve in enumerate(curves):
                found = [p for p in points if (p["search"], p["curve"]) == (search, curve)]
                _plot_curve(axis, sorted(found, key=lambda point: point["hours"]), number)
            axis.set_title(search, fontsize="medium")
            axis.set_xlabel("hours of training speech")
            axis.set_xscale("log")
            hours = sorted({point["hours"] for point in points})
            axis.set_xticks(hours, [f"{one:g}" for one in hours], minor=False)
            axis.set_xticks([], minor=True)
            axis.set_ylim(bottom=1)  # no drafts
        axes[0, 0].set_ylabel("tokens a call")
        legend_above(figure, axes.flat)
        save(figure, path)


def _plot_curve(axis: pyplot.Axes, points: Sequence[dict], number: int) -> None:
    """With the interval where there is one."""
    hours = [point["hours"] for point in points]
    estimates = [point["tokens_per_call"] for point in points]
    color = COLORS[number % len(COLORS)]
    axis.plot(
        hours, [one["value"] for one in estimates], color=color,
        marker=MARKERS[number % len(MARKERS)], label=points[0]["curve"] if points else None,
    )  # fmt: skip
    if all(one["low"] is not None for one in estimates):
        low, high = ([one[end] for one in estimates] for end in ("low", "high"))
        axis.fill_between(hours, low, high, color=color, alpha=0.15, lw=0)


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help=".json of who_drafts.py")
    parser.add_argument("--output", type=Path, required=True, help=".png to write")
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("learning_curve", lambda: plot_curves(read_points(args.result), args.output))


if __name__ == "__main__":
    main()
