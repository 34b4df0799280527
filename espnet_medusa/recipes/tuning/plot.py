"""Draw a tuning: the time of each drafter by part, and all settings that were tried."""

import textwrap
from functools import partial
from pathlib import Path

from matplotlib import pyplot
from matplotlib.lines import Line2D
from matplotlib.ticker import ScalarFormatter

from espnet_medusa.decoding.search.search_options import ACCEPTANCE, FIXED
from espnet_medusa.recipes.report.style import COLORS, save
from espnet_medusa.recipes.tuning.available import NO_DRAFTS, DraftSetting
from espnet_medusa.recipes.tuning.findings import Tuning
from espnet_medusa.recipes.tuning.stopwatch import CALLS, DRAFTING
from espnet_medusa.recipes.tuning.tuning_report import best_settings, milliseconds

PART_COLORS = {
    "encoder": "0.75",
    CALLS: "tab:blue",
    "draft model's encoder": "tab:olive",
    DRAFTING: "tab:orange",
    "the rest": "0.45",
}
MARKERS = {FIXED: "o", ACCEPTANCE: "^"}
MARKER_NAMES = {FIXED: "fixed depth", ACCEPTANCE: "lookahead acceptance"}
VISIBLE = 0.005  # minimum part to draw, as a share of the longest bar
LABEL_CHARACTERS = 30  # maximum per line


def plot_tuning(tuning: Tuning, title: str, path: Path) -> None:
    """Draw bars of the best settings, and time against calls of all settings."""
    bars = best_settings(tuning)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 2.6 + 0.62 * len(bars)))
    _draw_parts(left, tuning, sorted(bars, key=tuning.total_seconds, reverse=True))
    _draw_settings(right, tuning)
    figure.suptitle(title, fontsize=9)
    save(figure, path)


def _draw_parts(axis: "pyplot.Axes", tuning: Tuning, settings: list[DraftSetting]) -> None:
    """Draw a bar for each setting, the fastest on top."""
    starts = [0.0] * len(settings)
    longest = milliseconds(tuning, max(map(tuning.total_seconds, settings)))
    for name, color in PART_COLORS.items():
        values = [milliseconds(tuning, tuning.parts(setting)[name]) for setting in settings]
        if max(values) > VISIBLE * longest:
            axis.barh(range(len(settings)), values, 0.62, starts, color=color, label=name)
        starts = [start + value for start, value in zip(starts, values, strict=True)]
    for place, (setting, end) in enumerate(zip(settings, starts, strict=True)):
        speedup = f" ({tuning.speedup(setting):.2f}x)" if setting.depth else ""
        weight = "bold" if setting == tuning.chosen else "normal"
        axis.text(end, place, f" {end:.1f}{speedup}", va="center", fontsize=8, weight=weight)
    axis.set_yticks(range(len(settings)), [_label(setting) for setting in settings], fontsize=8)
    axis.set(xlim=(0, 1.22 * longest), xlabel="ms per utterance (bold: chosen)")
    axis.grid(axis="y", visible=False)
    axis.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)


def _label(setting: DraftSetting) -> str:
    if setting.depth == 0:
        return setting.drafter
    return "\n".join([setting.drafter, *textwrap.wrap(setting.shape, LABEL_CHARACTERS)])


def _draw_settings(axis: "pyplot.Axes", tuning: Tuning) -> None:
    color_of = {name: COLORS[number % 10] for number, name in enumerate(tuning.task.drafters)}
    color_of[NO_DRAFTS.drafter] = "black"
    for setting in tuning.trials:
        axis.scatter(
            *_place(tuning, setting), s=30, marker=MARKERS[setting.lookahead], alpha=0.75,
            color=color_of[setting.drafter], linewidths=0, zorder=3,
        )  # fmt: skip
    ring = {"s": 150, "facecolors": "none", "edgecolors": "tab:red", "zorder": 4}
    axis.scatter(*_place(tuning, tuning.chosen), **ring)
    marker = partial(Line2D, [], [], ls="")
    handles = [marker(marker="o", color=color, label=name) for name, color in color_of.items()]
    for name in dict.fromkeys(setting.lookahead for setting in tuning.trials):
        handles.append(marker(marker=MARKERS[name], color="0.5", label=MARKER_NAMES[name]))
    handles.append(marker(marker="o", ms=11, mfc="none", color="tab:red", label="chosen"))
    axis.legend(handles=handles, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.set(xlabel="decoder calls per utterance", ylabel="ms per utterance, encoders included")
    axis.set_title("all settings that were tried", fontsize=9)


def _place(tuning: Tuning, setting: DraftSetting) -> tuple[float, float]:
    return tuning.calls(setting), milliseconds(tuning, tuning.total_seconds(setting))
