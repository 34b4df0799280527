"""Plots of the report."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from matplotlib import pyplot

from espnet_medusa.recipes.report.style import COLORS, MARKERS, add_legend, save

WEIGHT_COLORS = {"float32": "C0", "bfloat16": "C1", "float16": "C4", "int8": "C2"}
DASHES = {"transformers": "--", "ctranslate2": "-."}
PANEL_INCHES = 3.6
Rows = Mapping[str, Sequence[dict]]  # by search


@contextmanager
def panels(
    titles: Sequence[str], path: Path, size: tuple[float, float] | None = None,
    legend: bool = True, columns: int = 4, **options,
) -> Iterator[list[pyplot.Axes]]:  # fmt: skip
    """Open a panel for each title; write the figure with one legend."""
    width, height = size or (PANEL_INCHES, PANEL_INCHES + 0.6)
    size = width * len(titles) + 1.0, height
    figure, axes = pyplot.subplots(1, len(titles), figsize=size, squeeze=False, **options)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize="medium")
    yield [*axes[0]]
    if legend:
        add_legend(figure, axes.flat, columns=columns)
    save(figure, path)


def plot_bars(searches: Rows, figures: tuple[str, str], unit: str, path: Path) -> None:
    """Stack encoder and decoder, named in ``figures``, in a bar per row, a panel per search."""
    height = 1.4 + 0.3 * max(map(len, searches.values()))
    with panels([*searches], path, (6.0, height)) as axes:
        for axis, rows in zip(axes, searches.values(), strict=True):
            labels = [row["label"] for row in rows]
            encoder, decoder = ([row[name] for row in rows] for name in figures)
            axis.barh(labels, encoder, color=COLORS[7], label="encoder and features")
            axis.barh(labels, decoder, left=encoder, color=COLORS[0], label="decoder")
            axis.invert_yaxis()
            axis.grid(axis="y", visible=False)
            axis.set_xlabel(unit)


def plot_lengths(searches: Rows, path: Path) -> None:
    """Plot milliseconds against seconds of audio, a line per row and a panel per search."""
    labels = list(dict.fromkeys(row["label"] for rows in searches.values() for row in rows))
    size = 5.6, PANEL_INCHES + 0.1 * len(labels)
    with panels([*searches], path, size, columns=3, sharey=True) as axes:
        for axis, rows in zip(axes, searches.values(), strict=True):
            for row in rows:
                number, ms = labels.index(row["label"]), row["ms_by_seconds"]
                axis.plot(
                    [*map(float, ms)], [*ms.values()], label=row["label"],
                    color=COLORS[number % len(COLORS)],
                    marker=MARKERS[number // len(COLORS) % len(MARKERS)],
                )  # fmt: skip
            axis.set(xlabel="seconds of audio", yscale="log")
            axis.set_xlim(left=0)
        axes[0].set_ylabel("ms from samples to text (medians)")


def plot_calls(reports: Sequence[dict], path: Path) -> None:
    """Plot our milliseconds per call against nodes, and other decoders' milliseconds per token."""
    reports = [report for report in reports if report["calls"]]
    if not reports:
        return
    with panels([report["title"] for report in reports], path) as axes:
        for axis, report in zip(axes, reports, strict=True):
            for weights, color in WEIGHT_COLORS.items():
                calls = [call for call in report["calls"] if call["weights"] == weights]
                if not calls:
                    continue
                nodes = [call["nodes"] for call in calls]
                low, middle, high = zip(*(call["ms"] for call in calls), strict=True)
                axis.plot(nodes, middle, "o-", color=color, ms=4, label=f"ours {weights}: per call")
                axis.fill_between(nodes, low, high, color=color, alpha=0.2, lw=0)
            for row in report["rows"]:
                plain = (row["search"], row["batch_size"]) == ("greedy", 1)
                if plain and row["contestant"] in DASHES:
                    axis.axhline(
                        row["ms_per_token"][1], color=WEIGHT_COLORS[row["weights"]], lw=1.2,
                        ls=DASHES[row["contestant"]],
                        label=f"{row['label']} {row['weights']}: per token",
                    )  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_xticks(sorted({call["nodes"] for call in report["calls"]}))
            axis.xaxis.set_major_formatter("{x:.0f}")
            axis.set_ylim(bottom=0)
            axis.set_xlabel("nodes in a call")
        axes[0].set_ylabel("ms")


def plot_saved_calls(searches: Rows, path: Path) -> None:
    """Plot how many times fewer calls each drafter makes against its nodes per call."""
    labels = list(dict.fromkeys(row["label"] for rows in searches.values() for row in rows))
    height = PANEL_INCHES + 0.2 * len(labels)
    with panels([*searches], path, (PANEL_INCHES, height), sharey=True) as axes:
        for axis, rows in zip(axes, searches.values(), strict=True):
            for row in rows:
                number = labels.index(row["label"])
                axis.plot(
                    row["nodes_per_call"], row.get("fewer_calls") or 1.0, ls="", label=row["label"],
                    color=COLORS[number % len(COLORS)],
                    marker=MARKERS[number // len(COLORS) % len(MARKERS)],
                )  # fmt: skip
            axis.set_xlabel("nodes per call")
            axis.set_xlim(left=0)
            axis.set_ylim(bottom=0)
        axes[0].set_ylabel("times fewer decoder calls")


def plot_curves(searches: Rows, path: Path) -> None:
    """Plot tokens per call against the hours of speech that drafters were trained on."""
    searches = {
        search: [row for row in rows if row.get("hours") is not None]
        for search, rows in searches.items()
    }
    points = [row for rows in searches.values() for row in rows]
    curves = list(dict.fromkeys(row["curve"] for row in points))
    hours = sorted({row["hours"] for row in points})
    with panels([*searches], path, sharey=True) as axes:
        for axis, rows in zip(axes, searches.values(), strict=True):
            for number, curve in enumerate(curves):
                _plot_curve(axis, curve, [row for row in rows if row["curve"] == curve], number)
            axis.set_xlabel("hours of training speech")
            axis.set_xscale("log")
            axis.set_xticks(hours, [f"{value:g}" for value in hours])
            axis.set_xticks([], minor=True)
            axis.set_ylim(bottom=1)  # without drafts
        axes[0].set_ylabel("tokens per call")


def _plot_curve(axis: pyplot.Axes, curve: str, rows: Sequence[dict], number: int) -> None:
    """Plot a curve, with intervals if all points have one."""
    rows = sorted(rows, key=lambda row: row["hours"])
    hours, estimates = [row["hours"] for row in rows], [row["tokens_per_call"] for row in rows]
    color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    values = [estimate["value"] for estimate in estimates]
    axis.plot(hours, values, color=color, marker=marker, label=curve)
    if all(estimate["low"] is not None for estimate in estimates):
        low, high = ([estimate[end] for estimate in estimates] for end in ("low", "high"))
        axis.fill_between(hours, low, high, color=color, alpha=0.15, lw=0)
