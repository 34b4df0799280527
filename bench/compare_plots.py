"""Plots of the comparison."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.lines import Line2D
from peers.subject import Sizes
from peers.way import BEAM_SIZES, CTC, CTC_HEADS, DRAFTS, HEADS, MODEL, PLAIN, REPLAYED
from roofline import Call

from espnet_medusa.report.style import STYLE, save

COLORS = {"float32": "C0", "bfloat16": "C1", "float16": "C4", "int8": "C2"}
DASHES = {
    "transformers": "--", "ctranslate2": "-.", "openai-whisper": ":",
    "transformers compiled": (0, (1, 4)),
}  # fmt: skip
MARKERS = {PLAIN: "x", HEADS: "o", CTC: "^", CTC_HEADS: "D", MODEL: "s", REPLAYED: "v"}
PEER = ("ctranslate2", "int8")  # speedups are over it
CONTEXT = 36  # tokens known before the timed calls
GIGA, MILLI = 1e9, 1e-3
PANEL = 3.6  # inches


def plot_calls(results: Sequence[dict], path: Path) -> None:
    """Milliseconds of a call against its nodes; peers' milliseconds a token as lines across."""
    results = [result for result in results if result["calls"]]
    figure, axes = _panels(results)
    for axis, result in zip(axes[0], results, strict=True):
        for weights in COLORS:
            calls = [call for call in result["calls"] if call["weights"] == weights]
            nodes = [call["nodes"] for call in calls]
            low, middle, high = (
                zip(*(call["ms"] for call in calls), strict=True) if calls else 3 * [[]]
            )
            axis.plot(nodes, middle, "o-", color=COLORS[weights], ms=4,
                      label=f"ours {weights}: a call")  # fmt: skip
            axis.fill_between(nodes, low, high, color=COLORS[weights], alpha=0.2, lw=0)
        for row in _plain_greedy(result):
            if row["contestant"] in DASHES:
                axis.axhline(row["ms_per_token"][1], color=COLORS[row["weights"]], lw=1.2,
                             ls=DASHES[row["contestant"]],
                             label=f"{row['label']} {row['weights']}: a token")  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({call["nodes"] for call in result["calls"]}))
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("nodes in a call")
    _finish(figure, axes, "ms", path)


def plot_speedup(results: Sequence[dict], path: Path) -> None:
    """How much faster than CTranslate2 int8 ours is, against tokens (steps) a call, by drafter."""
    results = [result for result in results if _peer(result, "greedy") is not None]
    figure, axes = _panels(results, BEAM_SIZES)
    for search, panels in zip(BEAM_SIZES, axes, strict=True):
        for axis, result in zip(panels, results, strict=True):
            peer = _peer(result, search)
            if peer is None:
                axis.set_visible(False)
                continue
            found = _ours(result, search)
            for weights in COLORS:
                rows = [row for row in found if row["weights"] == weights]
                _plot_drafters(axis, rows, peer, joined=result["fixed_tokens"] is not None)
            axis.axhline(1.0, color="black", lw=0.8, ls=":")
            axis.set_xlim(left=0)
            axis.set_ylim(bottom=0)
            axis.set_xlabel("tokens a call" + (" (replayed)" if result["fixed_tokens"] else ""))
    label = "times faster than CTranslate2 int8, per token"
    _finish(figure, axes, label, path, _speedup_legend(results))


def _plot_drafters(axis: pyplot.Axes, rows: Sequence[dict], peer: dict, joined: bool) -> None:
    """Rows of one type of weights; those of one drafter are joined."""
    rows = sorted(rows, key=lambda row: row["measured_tokens_per_call"])
    calls = [row["measured_tokens_per_call"] for row in rows]
    times = [_middle(peer) / _middle(row) for row in rows]
    for row, x, y in zip(rows, calls, times, strict=True):
        axis.plot(x, y, MARKERS[row["drafts"]], color=COLORS[row["weights"]], mfc="none")
    if rows and joined:
        axis.plot(calls, times, color=COLORS[rows[0]["weights"]], lw=1)


def _speedup_legend(results: Sequence[dict]) -> list[Line2D]:
    """Weights by color, drafters by marker, those that are in the plot."""
    rows = [row for result in results for search in BEAM_SIZES for row in _ours(result, search)]
    weights, drafts = ({row[name] for row in rows} for name in ("weights", "drafts"))
    entries = [
        Line2D([], [], color=color, lw=4, label=f"ours {name}")
        for name, color in COLORS.items()
        if name in weights
    ]
    return entries + [
        Line2D([], [], color="gray", ls="", marker=marker, mfc="none",
               label=DRAFTS.get(name, "no drafts"))
        for name, marker in MARKERS.items()
        if name in drafts
    ]  # fmt: skip


def plot_roofline(results: Sequence[dict], machine: dict, path: Path) -> None:
    """Achieved rate of calls against their arithmetic intensity, under the machine's roofs."""
    results = [result for result in results if result["calls"]]
    figure, axes = _panels(results)
    bandwidth = max(machine["bandwidth"].values())
    for axis, result in zip(axes[0], results, strict=True):
        sizes = Sizes(**result["sizes"])
        for weights in COLORS:
            timed = sorted(
                (call["nodes"], call["ms"][1])
                for call in result["calls"]
                if call["weights"] == weights
            )
            calls = [Call(sizes, weights, nodes, CONTEXT, result["frames"]) for nodes, _ in timed]
            rates = [
                call.operations / (MILLI * ms) / GIGA
                for call, (_, ms) in zip(calls, timed, strict=True)
            ]
            intensities = [call.intensity for call in calls]
            axis.plot(
                intensities, rates, "o-", color=COLORS[weights], ms=4, label=f"ours {weights}"
            )
            peak = machine["gemm"].get(weights)
            if timed and peak:
                ridge = peak / bandwidth
                left, right = 0.3, max(2 * ridge, 200.0)
                axis.plot([left, ridge, right], [left * bandwidth, peak, peak], lw=1, ls="--",
                          color=COLORS[weights], label=f"roof {weights}")  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("operations a byte")
    _finish(figure, axes, "GFLOP/s", path)


def _panels(
    results: Sequence[dict], searches: Sequence[str] = ("",)
) -> tuple[pyplot.Figure, np.ndarray]:
    """A column for each result, a row for each search."""
    count, rows = max(len(results), 1), len(searches)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            rows, count, figsize=(PANEL * count + 1.0, PANEL * rows + 1.2), squeeze=False,
            layout="constrained",
        )  # fmt: skip
    axes = axes[:, : len(results)]
    for search, panels in zip(searches, axes, strict=True):
        for axis, result in zip(panels, results, strict=True):
            title = ", ".join(filter(None, [result["subject"], search]))
            axis.set_title(title, fontsize="medium")
    return figure, axes


def _finish(
    figure: pyplot.Figure,
    axes: np.ndarray,
    label: str,
    path: Path,
    entries: Sequence[Line2D] | None = None,
) -> None:
    """One legend for all panels; None: of what they name."""
    if entries is None:
        named = {}
        for axis in axes.flat:
            for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
                if len(handle.get_xdata()):
                    named.setdefault(name, handle)
        entries = [*named.values()]
    if axes.size:
        figure.supylabel(label, fontsize="medium")
        figure.legend(
            handles=entries, loc="outside lower center",
            ncols=4, fontsize="small", frameon=False,
        )  # fmt: skip
    save(figure, path)


def _ours(result: dict, search: str) -> list[dict]:
    return [
        row
        for row in result["rows"]
        if (row["contestant"], row["search"], row["batch_size"]) == ("ours", search, 1)
    ]


def _plain_greedy(result: dict) -> list[dict]:
    return [row for row in result["rows"] if (row["search"], row["batch_size"]) == ("greedy", 1)]


def _peer(result: dict, search: str) -> dict | None:
    found = [
        row
        for row in result["rows"]
        if (row["contestant"], row["weights"]) == PEER
        and (row["search"], row["batch_size"]) == (search, 1)
    ]
    return found[0] if found else None


def _middle(row: dict) -> float:
    return row["ms_per_token"][1]
