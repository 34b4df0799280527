"""Plots of the comparison."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from peers.subject import Sizes
from roofline import Call

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

from espnet_medusa.scoring.plots import STYLE  # noqa: E402

COLORS = {"float32": "C0", "bfloat16": "C1", "float16": "C4", "int8": "C2"}
DASHES = {
    "transformers": "--", "ctranslate2": "-.", "openai-whisper": ":",
    "transformers compiled": (0, (1, 4)),
}  # fmt: skip
PEER = ("ctranslate2", "int8")  # speedups are over it
CONTEXT = 36  # tokens known before the timed calls
GIGA, MILLI = 1e9, 1e-3
PANEL = 3.6  # inches


def plot_calls(results: Sequence[dict], path: Path) -> None:
    """Milliseconds of a call against its nodes; peers' milliseconds a token as lines across."""
    results = [result for result in results if result["calls"]]
    figure, axes = _panels(results)
    for axis, result in zip(axes, results, strict=True):
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
    """How much faster than CTranslate2 int8 ours is, against tokens (steps) a call."""
    results = [result for result in results if _peer(result, "greedy") is not None]
    figure, axes = _panels(results)
    for axis, result in zip(axes, results, strict=True):
        for search, marker, line in (("greedy", "o", "-"), ("beam 5", "s", "--")):
            peer = _peer(result, search)
            for weights in COLORS:
                points = sorted(
                    (row["measured_tokens_per_call"], _middle(peer) / _middle(row))
                    for row in result["rows"]
                    if (row["contestant"], row["weights"]) == ("ours", weights)
                    and (row["search"], row["batch_size"]) == (search, 1)
                    and peer is not None
                )
                if points:
                    axis.plot(*zip(*points, strict=True), marker=marker, ls=line, ms=5,
                              color=COLORS[weights], label=f"ours {weights}, {search}",
                              mfc="none" if result["fixed_tokens"] else None)  # fmt: skip
        axis.axhline(1.0, color="black", lw=0.8, ls=":")
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("tokens a call" + (" (replayed)" if result["fixed_tokens"] else ""))
    _finish(figure, axes, "times faster than CTranslate2 int8, per token", path)


def plot_roofline(results: Sequence[dict], machine: dict, path: Path) -> None:
    """Achieved rate of calls against their arithmetic intensity, under the machine's roofs."""
    results = [result for result in results if result["calls"]]
    figure, axes = _panels(results)
    bandwidth = max(machine["bandwidth"].values())
    for axis, result in zip(axes, results, strict=True):
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


def _panels(results: Sequence[dict]) -> tuple[pyplot.Figure, Sequence[pyplot.Axes]]:
    with pyplot.rc_context(STYLE):
        count = max(len(results), 1)
        figure, axes = pyplot.subplots(
            1, count, figsize=(PANEL * count + 1.0, PANEL + 1.2), squeeze=False,
            layout="constrained",
        )  # fmt: skip
    for axis, result in zip(axes[0], results, strict=False):
        axis.set_title(result["subject"], fontsize="medium")
    return figure, axes[0][: len(results)]


def _finish(figure: pyplot.Figure, axes: Sequence[pyplot.Axes], label: str, path: Path) -> None:
    """One legend for all panels."""
    entries = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            if len(handle.get_xdata()):
                entries.setdefault(name, handle)
    if len(axes):
        axes[0].set_ylabel(label)
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center",
            ncols=4, fontsize="small", frameon=False,
        )  # fmt: skip
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)


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
