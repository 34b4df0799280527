"""Draw README.md's bar chart: milliseconds per utterance, with the word error rate of each program.

python tools/docs_chart.py      # writes docs/milliseconds.svg; `make docs` calls it
"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from update_docs import ROOT, read_table

SOURCE = ROOT / "bench/results/amd_epyc_vnni_2_cores/real_whisper_base_45.md"
CHART = ROOT / "docs/milliseconds.svg"
# Rows of the section "greedy" of SOURCE, and their labels.
BARS = {
    "openai-whisper, float32": "openai-whisper, float32",
    "faster-whisper, int8": "faster-whisper, int8",
    "OpenVINO GenAI, int8": "OpenVINO GenAI, int8",
    "ours, int8": "espnet_medusa, int8",
    "ours, int8, drafts by heads": "espnet_medusa, int8, Medusa heads",
}


def read_bars() -> list[tuple[str, int, str]]:
    """Return label, milliseconds per utterance and WER in percent of each bar."""
    header, *rows = read_table(SOURCE.read_text(encoding="utf-8"), "greedy")
    by_name = {row[0]: row for row in rows}
    milliseconds, wer = header.index("all [ms]"), header.index("WER [%]")
    return [
        (label, int(by_name[name][milliseconds]), by_name[name][wer])
        for name, label in BARS.items()
    ]


def read_title() -> str:
    """Return the line of SOURCE that has the number of utterances, the machine and the threads."""
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line and not line.startswith("#"))


def draw(path: Path) -> None:
    """Write the chart as SVG whose labels are text."""
    labels, milliseconds, rates = zip(*read_bars(), strict=True)
    style = {"svg.fonttype": "none", "svg.hashsalt": path.name, "font.size": 11}
    with mpl.rc_context(style):
        figure, axes = plt.subplots(figsize=(8.4, 2.8), layout="constrained")
        colors = ["#2a6f4e" if "espnet_medusa" in label else "#9aa5b1" for label in labels]
        bars = axes.barh(labels, milliseconds, color=colors)
        notes = [f"{time} ms, WER {rate} %" for time, rate in zip(milliseconds, rates, strict=True)]
        axes.bar_label(bars, notes, padding=4)
        axes.set_title(read_title(), loc="left", fontsize=10)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.45 * max(milliseconds))
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(left=False, bottom=False, labelbottom=False)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    draw(CHART)
