"""Tables and figures of ``gpu.py``."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from contestants.ways import DRAFTS
from plots import panels

from espnet_medusa.recipes.report.markdown import markdown_table
from espnet_medusa.recipes.report.style import COLORS
from gpu_parts.part import PartResults, Row

GIGA = 1e9
SIZES = re.compile(r"(, \d+)+$")  # batch size and nodes at the end of a row's name
MEDIAN = 1  # of quartiles
TEXT_COLUMNS = {  # title: figure and how it is written
    "contestant": ("label", "{}"),
    "weights": ("weights", "{}"),
    "batch": ("batch_size", "{}"),
    "encoder and features [ms]": ("encoder_ms", "{:.1f}"),
    "decoder [ms]": ("decoder_ms", "{:.1f}"),
    "all [ms]": ("ms", "{:.1f}"),
    "calls": ("calls", "{:.1f}"),
    "tokens per call": ("tokens_per_call", "{:.2f}"),
    "WER [%]": ("wer", "{:.2f}"),
    "same text": ("same_text", "{}"),
    "GB": ("giga_bytes", "{:.2f}"),
}
CALL_NOTES = """\
- *A call*: the decoder and the vocabulary projections over new tokens of each utterance, after 36
  tokens, with 1500 encoder frames; medians of synchronized calls after warm-up. *transformers*:
  the same layers with its own cache; *compiled*: `torch.compile` with a static cache.
  *CTranslate2*, the engine of faster-whisper: a step of `generate` with 4 to 68 tokens. *GB*: peak
  memory of tensors on the GPU, with weights.
"""
TEXT_NOTES = """\
- Samples to text, greedy but for *beam 5*. Milliseconds are per utterance, medians over full
  batches after warm-up. Encoder and decoder have the same precision. *Same text*: equal to the
  first row's. WER after Whisper's normalizer. *transformers compiled*: `generate` with a static
  cache, which compiles decoder steps on a GPU. *CTranslate2*: faster-whisper's engine with
  transformers' features.
"""


def write_report(found: Mapping[str, PartResults], machine: Mapping, folder: Path) -> None:
    """Write gpu.md and its plots.

    Args:
        found: Rows by part: ``tests``, ``calls_SHAPE``, ``texts_NAME``.
        machine: Result of ``describe_machine``, with ``gpu`` of ``describe_gpu``.
    """
    calls = _of_kind(found, "calls")
    texts = _of_kind(found, "texts")
    parts = [f"# {machine['device']}\n", _machine(machine)]
    for results in _of_kind(found, "tests").values():
        for row in results.rows:
            parts.append(f"{row['tests']} tests need a GPU; {row['skipped']} were skipped.\n")
    for shape, results in calls.items():
        parts.append(f"## Decoder calls, {shape}'s shape, random weights\n\n{call_table(results)}")
    if calls:
        plot_calls(calls, folder / "gpu_calls.png")
        parts.append(f"![Milliseconds of a call](gpu_calls.png)\n\n{CALL_NOTES}")
    for name, results in texts.items():
        parts.append(f"## {name}, audio to text\n\n{text_table(results)}")
    if texts:
        plot_batches(texts, folder / "gpu_batches.png")
        parts.append(f"![By batch](gpu_batches.png)\n\n{TEXT_NOTES}")
    for title, kind in (("Failed", "failed"), ("Left out", "left_out")):
        lines = [
            f"- {name}: {line}\n"
            for name, results in found.items()
            for line in _grouped(getattr(results, kind))
        ]
        if lines:
            parts.append(f"## {title}\n\n{''.join(lines)}")
    (folder / "gpu.md").write_text("\n".join(parts), encoding="utf-8")


def _grouped(reasons: Mapping[str, str]) -> list[str]:
    """Return a line for each reason and contestant; ``reasons`` are by row."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row, reason in reasons.items():
        groups.setdefault((SIZES.sub("", row), reason), []).append(row)
    return [
        f"{name if len(rows) > 1 else rows[0]}: {reason}{f' ({len(rows)} rows)' * (len(rows) > 1)}"
        for (name, reason), rows in groups.items()
    ]


def call_table(results: PartResults) -> str:
    """Return a row for each contestant, weights and batch size; columns are node counts."""
    nodes = sorted({row["nodes"] for row in results.rows})
    titles = ["contestant", "weights", "batch", *(f"{count} nodes [ms]" for count in nodes), "GB"]
    table, groups = [], {}
    for row in results.rows:
        key = row["contestant"], row["weights"], row["batch_size"]
        groups.setdefault(key, []).append(row)
    for (contestant, weights, batch_size), rows in groups.items():
        ms = {row["nodes"]: f"{row['ms'][MEDIAN]:.2f}" for row in rows}
        peaks = [row["peak_bytes"] for row in rows if row["peak_bytes"] is not None]
        peak = f"{max(peaks) / GIGA:.2f}" if peaks else ""
        times = [ms.get(count, "") for count in nodes]
        table.append([contestant, weights, str(batch_size), *times, peak])
    return markdown_table(titles, table, text_columns=2)


def text_table(results: PartResults) -> str:
    """Return a row for each contestant, drafter and batch size."""
    rows = []
    for row in results.rows:
        peak = row["peak_bytes"]
        row = row | {"label": _label(row), "giga_bytes": None if peak is None else peak / GIGA}
        figures = ((row.get(name), form) for name, form in TEXT_COLUMNS.values())
        rows.append(["" if value is None else form.format(value) for value, form in figures])
    return markdown_table([*TEXT_COLUMNS], rows, text_columns=2)


def plot_calls(calls: Mapping[str, PartResults], path: Path) -> None:
    """Plot the smallest batch: bars by contestant and nodes, a panel for each shape."""
    shapes = []
    for rows in (_main_weights(results.rows) for results in calls.values()):
        least = min(row["batch_size"] for row in rows)
        shapes.append([row for row in rows if row["batch_size"] == least])
    size = 5.6, 1.4 + 0.25 * max(map(len, shapes))
    with panels([*calls], path, size, legend=False) as axes:
        for axis, rows in zip(axes, shapes, strict=True):
            nodes = sorted({row["nodes"] for row in rows})
            names = [f"{row['contestant']}, {row['weights']}, {row['nodes']}" for row in rows]
            colors = [COLORS[nodes.index(row["nodes"])] for row in rows]
            axis.barh(names, [row["ms"][MEDIAN] for row in rows], color=colors)
            axis.invert_yaxis()
            axis.grid(axis="y", visible=False)
            axis.set_xlabel("ms per call (medians), by contestant, weights and nodes")


def plot_batches(texts: Mapping[str, PartResults], path: Path) -> None:
    """Plot milliseconds per utterance by batch size, a panel for each model."""
    with panels([*texts], path, (5.6, 3.6)) as axes:
        for axis, results in zip(axes, texts.values(), strict=True):
            ways: dict[str, list[Row]] = {}
            for row in _main_weights(results.rows):
                ways.setdefault(f"{_label(row)}, {row['weights']}", []).append(row)
            for number, (way, rows) in enumerate(ways.items()):
                sizes = [row["batch_size"] for row in rows]
                times = [row["ms"] for row in rows]
                axis.plot(sizes, times, color=COLORS[number % len(COLORS)], marker="o", label=way)
            axis.set(xscale="log", yscale="log")
            ticks = sorted({row["batch_size"] for row in results.rows})
            axis.set_xticks(ticks, [*map(str, ticks)], minor=False)
            axis.set_xticks([], minor=True)
            axis.set(xlabel="utterances together", ylabel="ms per utterance (median)")


def _main_weights(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the type of weights that most rows have, as other programs do."""
    [(weights, _)] = Counter(row["weights"] for row in rows).most_common(1)
    return [row for row in rows if row["weights"] == weights]


def _of_kind(found: Mapping[str, PartResults], kind: str) -> dict[str, PartResults]:
    """Return the parts of a kind that have rows, by what they measure."""
    return {
        name.removeprefix(kind).removeprefix("_"): results
        for name, results in found.items()
        if name.startswith(kind) and results.rows
    }


def _machine(machine: Mapping) -> str:
    processor = f"{machine['processor']}, {machine['cores']} cores"
    facts = {"processor": processor, "threads": str(machine["threads"])}
    facts |= machine.get("gpu", {}) | machine["versions"]
    return markdown_table(["", ""], facts.items())


def _label(row: Mapping) -> str:
    """Return contestant and way, such as its drafts, in words."""
    way = row["drafts"]
    return ", ".join(filter(None, [row["contestant"], DRAFTS.get(way, way)]))
