"""Figure of a tuning: what drafts save in calls, what they cost in nodes and in time."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # No display needed.

from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import ScalarFormatter  # noqa: E402

from espnet_medusa.scoring.plots import STYLE  # noqa: E402
from espnet_medusa.tuning.report import predicted_ratio  # noqa: E402
from espnet_medusa.tuning.setting import NO_DRAFTS, DraftSetting  # noqa: E402
from espnet_medusa.tuning.tuner import Tuning  # noqa: E402

MARKERS = "osD^vP*X"
SLOWEST = 0.5  # speedup at the dark end of the colours


def plot_tuning(tuning: Tuning, title: str, path: Path) -> None:
    """Draw calls saved against nodes per call, coloured by the predicted speed of the search.

    Args:
        tuning: What was found.
        title: Of the figure.
        path: PNG to write.
    """
    settings = sorted(tuning.trials, key=lambda setting: setting.depth)
    groups = sorted({_group(setting) for setting in settings})
    fastest = max(predicted_ratio(tuning, setting) for setting in settings)
    norm = matplotlib.colors.Normalize(SLOWEST, max(fastest, 1.0))
    with pyplot.rc_context(STYLE):
        figure, axis = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        for group, marker in zip(groups, MARKERS, strict=False):
            members = [setting for setting in settings if _group(setting) == group]
            x, y = zip(*(_place(tuning, setting) for setting in members), strict=True)
            colors = [predicted_ratio(tuning, setting) for setting in members]
            dots = axis.scatter(
                x, y, c=colors, norm=norm, cmap="viridis", marker=marker, s=45, label=group[1]
            )
            for setting, place in zip(members, zip(x, y, strict=True), strict=True):
                if setting.depth and setting.budget is None:
                    axis.annotate(
                        str(setting.depth), place, (0, 5), textcoords="offset points",
                        ha="center", fontsize=7, color="0.3",
                    )  # fmt: skip
        axis.scatter(
            *_place(tuning, tuning.chosen), s=190, facecolors="none", edgecolors="tab:red",
            label=f"chosen: {tuning.chosen}",
        )  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.set_xlabel("nodes per decoder call")
        axis.set_ylabel("times fewer decoder calls")
        axis.set_title(title, fontsize=10)
        legend = axis.legend(title="numbers: depth", fontsize=8, title_fontsize=8)
        for handle in legend.legend_handles[:-1]:
            handle.set_array(None)
            handle.set_facecolor("0.5")
        figure.colorbar(dots, label="predicted speed of the search over no drafts")
        figure.savefig(path, bbox_inches="tight")
        pyplot.close(figure)


def _group(setting: DraftSetting) -> tuple[int, str]:
    """Settings of one marker: in order, and its name."""
    if setting == NO_DRAFTS:
        return 0, "no drafts"
    if setting.budget is not None:
        return 10**6, "with a budget"
    return setting.width, f"width {setting.width}"


def _place(tuning: Tuning, setting: DraftSetting) -> tuple[float, float]:
    statistics = tuning.trials[setting].statistics
    plain = tuning.trials[NO_DRAFTS].statistics.decoder_calls
    return statistics.nodes / statistics.decoder_calls, plain / statistics.decoder_calls
