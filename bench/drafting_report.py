"""Table and plots of `drafting.py`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import torch
from drafting_settings import DEEP, PLAIN, Search, Setting
from inputs import Utterance
from matplotlib import pyplot
from matplotlib.lines import Line2D

from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.report.style import STYLE, save
from espnet_medusa.scoring.alignment import align_pairs
from espnet_medusa.scoring.sclite import Counts
from espnet_medusa.scoring.trn import split_tokens
from espnet_medusa.search.statistics import DecodingStatistics, eta

COLORS = {PLAIN: "0.3", "linear": "C0", "block": "C1", "recurrent": "C2"}
MARKERS = {
    PLAIN: "P", "chain": "o", "as wide as the beam (greedy: 2)": "s", "twice as wide": "^",
    "fixed tree": "D", "own width, CTC left out of the drafts": "X",
}  # fmt: skip
COLUMNS = (
    *("heads", "drafts", "batch", "decoder calls", "fewer calls", "nodes/call", "tokens/call"),
    *("eta", "WER", "decoder RTF", "faster than plain", "faster than batch 1", "same n-best"),
)
NOTES = """
- *fewer calls*: decoder calls of the plain search over these. A plain search, ESPnet's
  `BatchBeamSearch` too, makes one call a step; {equal} of {searched} plain states made exactly as
  many calls as steps. In a batch each utterance counts the calls that it took part in.
- *same n-best*: utterances whose n-best list (tokens and order) is that of the plain search at
  batch 1; scores differ by at most {score_gap:.1e}.
- *decoder RTF*: seconds of the search, CTC included, encoder not, over those of the audio; median
  over utterances. *faster than plain*: seconds of the plain search at batch 1 over these, median
  over utterances (batches: over batches). One thread, all ways in turn on each utterance.
- *eta*: decoder calls per word, 2 calls / (reference words + hypothesis words).
- Bold: fewest calls and fastest of those with the same n-best.
"""


NBest = list[tuple[tuple[int, ...], float]]


@dataclass(frozen=True)
class Outcome:
    """One utterance searched in one way.

    Attributes:
        setting: The way.
        utterance: Id.
        statistics: Calls, nodes and tokens.
        steps: Steps of the search.
        seconds: Of the search; in a batch its share.
        nbest: Tokens and score of each hypothesis, best first.
        text: Of the best.
        batch: Number of the batch that the utterance belongs to, also when searched alone.
    """

    setting: Setting
    utterance: str
    statistics: DecodingStatistics
    steps: int
    seconds: float
    nbest: NBest
    text: str
    batch: int


@dataclass(frozen=True)
class Row:
    """A way of searching over the whole set; ratios are medians, ``None`` where they say nothing.

    Attributes:
        fewer_calls: Plain calls over these.
        faster: Plain seconds at batch 1 over these: quartiles.
        faster_batched: Seconds at batch 1 over these, same setting: quartiles.
        identical: Utterances with the plain search's n-best list.
        score_gap: Largest difference of scores in them.
        calls_equal_steps: Utterances that took a call for each step.
    """

    setting: Setting
    utterances: int
    decoder_calls: int
    fewer_calls: float
    nodes_per_call: float
    tokens_per_call: float
    eta: float
    wer: float
    decoder_rtf: float
    faster: list[float]
    faster_batched: list[float] | None
    identical: int
    score_gap: float
    calls_equal_steps: int


def make_rows(outcomes: Sequence[Outcome], utterances: Mapping[str, Utterance]) -> list[Row]:
    """A row for each setting, in order of appearance."""
    found: dict[Setting, dict[str, Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.setting, {})[outcome.utterance] = outcome
    return [
        _make_row(setting, ours, found[Setting(setting.search)], found, utterances)
        for setting, ours in found.items()
    ]


def _make_row(setting, ours, plain, found, utterances: Mapping[str, Utterance]) -> Row:
    total = sum((one.statistics for one in ours.values()), DecodingStatistics())
    plain_calls = sum(one.statistics.decoder_calls for one in plain.values())
    pairs = [(split_tokens(utterances[name].text), split_tokens(ours[name].text)) for name in ours]
    counts = sum(map(Counts.of_operations, align_pairs(pairs)), Counts())
    words = [sum(map(len, side)) for side in zip(*pairs, strict=True)]
    same = [name for name in ours if _tokens(ours[name]) == _tokens(plain[name])]
    gaps = [
        abs(mine - theirs)
        for name in same
        for (_, mine), (_, theirs) in zip(ours[name].nbest, plain[name].nbest, strict=True)
    ]
    summary = total.summary()
    alone = found.get(_alone(setting)) if setting.batch_size > 1 else None
    return Row(
        setting=setting,
        utterances=len(ours),
        decoder_calls=total.decoder_calls,
        fewer_calls=plain_calls / total.decoder_calls,
        nodes_per_call=summary["nodes_per_call"],
        tokens_per_call=summary["tokens_per_call"],
        eta=eta(total.decoder_calls, *words),
        wer=counts.error_percent,
        decoder_rtf=median(one.seconds / utterances[name].seconds for name, one in ours.items()),
        faster=ratio_quartiles(plain, ours, by_batch=setting.batch_size > 1),
        faster_batched=None if alone is None else ratio_quartiles(alone, ours, by_batch=True),
        identical=len(same),
        score_gap=max(gaps, default=0.0),
        calls_equal_steps=sum(one.steps == one.statistics.decoder_calls for one in ours.values()),
    )


def _alone(setting: Setting) -> Setting:
    return Setting(**{**vars(setting), "batch_size": 1})


def _tokens(outcome: Outcome) -> list[tuple[int, ...]]:
    return [tokens for tokens, _ in outcome.nbest]


def ratio_quartiles(
    slow: Mapping[str, Outcome], fast: Mapping[str, Outcome], by_batch: bool
) -> list[float]:
    """Quartiles of seconds over seconds, of utterances or of batches."""
    seconds: dict[str | int, list[float]] = {}
    for name in fast:
        pair = seconds.setdefault(fast[name].batch if by_batch else name, [0.0, 0.0])
        pair[0] += slow[name].seconds
        pair[1] += fast[name].seconds
    ratios = [before / after for before, after in seconds.values()]
    return quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios


def write_report(rows: Sequence[Row], output_dir: Path) -> None:
    """Write ``table.md``, ``table.json`` and the plots."""
    output_dir.mkdir(parents=True, exist_ok=True)
    (output_dir / "table.md").write_text(table_markdown(rows), encoding="utf-8")
    report = {
        "utterances": rows[0].utterances,
        "torch": torch.__version__,
        "rows": [{**asdict(row), "drafts": row.setting.drafts} for row in rows],
    }
    text = json.dumps(report, indent=1) + "\n"
    (output_dir / "table.json").write_text(text, encoding="utf-8")
    _plot(rows, output_dir / "calls.png", "nodes_per_call", "nodes per call")
    _plot(rows, output_dir / "time.png", "faster", "times faster than plain (median)")


def table_markdown(rows: Sequence[Row]) -> str:
    """A table for each search."""
    parts = ["# Decoder calls, plain and drafted\n"]
    for search, group in by_search(rows).items():
        table = markdown_table(COLUMNS, [_cells(row, group) for row in group], text_columns=2)
        parts.append(f"## {search.name}\n\n{table}")
    plain = [row for row in rows if row.setting.heads == PLAIN and row.setting.batch_size == 1]
    parts.append(
        NOTES.format(
            equal=sum(row.calls_equal_steps for row in plain),
            searched=sum(row.utterances for row in plain),
            score_gap=max(row.score_gap for row in rows),
        ).lstrip("\n")
    )
    return "\n".join(parts)


def by_search(rows: Sequence[Row]) -> dict[Search, list[Row]]:
    """Rows of each search."""
    groups: dict[Search, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.setting.search, []).append(row)
    return groups


def _cells(row: Row, group: Sequence[Row]) -> list[str]:
    exact = [other for other in group if other.identical == other.utterances]
    fewest = max((other.fewer_calls for other in exact), default=None)
    fastest = max((other.faster[1] for other in exact), default=None)
    is_exact = row in exact
    batched = "" if row.faster_batched is None else f"{row.faster_batched[1]:.2f}x"
    return [
        *(row.setting.heads, row.setting.drafts, str(row.setting.batch_size)),
        *(str(row.decoder_calls), _bold(f"{row.fewer_calls:.2f}x", row.fewer_calls == fewest)),
        *(f"{row.nodes_per_call:.1f}", f"{row.tokens_per_call:.2f}", f"{row.eta:.2f}"),
        *(f"{row.wer:.1f}", f"{row.decoder_rtf:.4f}"),
        *(_bold(f"{row.faster[1]:.2f}x", is_exact and row.faster[1] == fastest), batched),
        ("yes" if is_exact else "**NO**") + f" {row.identical}/{row.utterances}",
    ]


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


def _plot(rows: Sequence[Row], path: Path, quantity: str, label: str) -> None:
    """Calls saved against a quantity, a panel for each search."""
    groups = by_search([row for row in rows if row.setting.batch_size == 1])
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            1, len(groups), figsize=(3.0 * len(groups) + 0.8, 3.8), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for axis, (search, group) in zip(axes[0], groups.items(), strict=True):
            for row in group:
                x = row.faster[1] if quantity == "faster" else getattr(row, quantity)
                axis.plot(x, row.fewer_calls, **_style(row.setting))
            axis.set_title(search.name, fontsize="medium")
            axis.set_xlabel(label)
            axis.set_xlim(left=0)
            axis.set_ylim(bottom=0)
            if quantity == "faster":
                axis.axvline(1.0, color="black", lw=0.8, ls=":")
        axes[0, 0].set_ylabel("times fewer decoder calls than plain")
        figure.legend(handles=_legend(rows), loc="outside lower center", ncols=5)
        save(figure, path)


def _shape(setting: Setting) -> str:
    if setting.heads == PLAIN:
        return PLAIN
    if setting.choices:
        return "fixed tree"
    if setting.left_out:
        return "own width, CTC left out of the drafts"
    own = setting.search.beam_size or 2
    return {1: "chain", own: "as wide as the beam (greedy: 2)"}.get(setting.width, "twice as wide")


def _style(setting: Setting) -> dict:
    color = COLORS[setting.heads]
    face = "none" if setting.depth == DEEP else color
    marker = MARKERS[_shape(setting)]
    order = 3 if setting.heads == PLAIN else 2  # on top of chains that save nothing
    size = {"ms": 7, "mew": 1.4, "ls": "none"}
    return {"color": color, "marker": marker, "mfc": face, "zorder": order, **size}


def _legend(rows: Sequence[Row]) -> list[Line2D]:
    """Colours of head types, markers of shapes, hollow for far ahead."""
    settings = [row.setting for row in rows]
    plain = {"ls": "none", "ms": 7, "mew": 1.4, "marker": "o"}
    heads = [name for name in COLORS if any(setting.heads == name for setting in settings)]
    lines = [Line2D([], [], **plain | {"marker": "o"}, color=COLORS[name], label=name)
             for name in heads if name != PLAIN]  # fmt: skip
    for shape, marker in MARKERS.items():
        if any(_shape(setting) == shape for setting in settings):
            lines.append(Line2D([], [], **plain | {"marker": marker}, color="0.3", label=shape))
    if any(setting.depth == DEEP for setting in settings):
        label = f"hollow: {DEEP} steps ahead"
        lines.append(Line2D([], [], **plain, color="0.3", mfc="none", label=label))
    return lines
