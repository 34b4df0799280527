"""sclite's reports: percentages by speaker (sum), counts by speaker (rsum), alignments (pra).

Source: NIST SCTK 2.4.10 (scores.c, statdist.c, path.c), checked against the program's output.
"""

import math
import operator
import statistics
from collections.abc import Sequence
from functools import reduce

from espnet_medusa.recipes.scoring.alignment import CORRECT, DELETION, INSERTION
from espnet_medusa.recipes.scoring.box_table import (
    TableRow,
    box_table,
    byte_width,
    center,
    flush_left,
)
from espnet_medusa.recipes.scoring.sclite import Counts, Score, ScoredUtterance, percent

DEFAULT_LINE_WIDTH = 1000

_TITLE = "SYSTEM SUMMARY PERCENTAGES by SPEAKER"
_FOOTNOTE = (
    "\n* No Reference words for this/these speaker(s).  Word counts supplied\n"
    "  rather than percents.\n"
    "# No Reference words for this/these speaker(s).  NCE not computable.\n"
    "+ Speaker(s) with no reference data is ignored\n"
)

# Columns Corr, Sub, Del, Ins, Err of both tables: attributes of Counts.
_COUNT_COLUMNS = ("correct", "substitutions", "deletions", "insertions", "errors")
_ASCII_UPPER = str.maketrans({chr(code): chr(code - 32) for code in range(ord("a"), ord("z") + 1)})


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, standard deviation (n - 1) and median; all are 0 without values."""
    if not values:
        return 0.0, 0.0, 0.0
    # Added one by one, as in sclite: sum() compensates rounding, and the last digit may differ.
    mean = reduce(operator.add, values, 0.0) / len(values)
    squares = reduce(operator.add, ((value - mean) * (value - mean) for value in values), 0.0)
    deviation = math.sqrt(squares / (len(values) - 1)) if squares else 0.0
    return mean, deviation, statistics.median(values)


def summary_report(score: Score, raw: bool = False) -> str:
    """Draw the table by speaker: percentages (sclite's `sum`), or with ``raw`` counts (`rsum`)."""
    speakers = score.speakers
    unit = "# Chr" if score.characters else "# Wrd"
    names = (" SPKR", " # Snt", unit, "Corr", " Sub", " Del", " Ins", " Err", "S.Err")
    rows = [TableRow(names, rule="-")]
    rows += [_counts_row(f" {name} ", counts, raw, "-") for name, counts in speakers.items()]
    rows.append(_counts_row(" Sum" if raw else " Sum/Avg", score.total, raw, "="))
    rows += _spread_rows(list(speakers.values()), raw)
    report = f"\n\n\n{center(_TITLE)}\n\n{box_table(score.title, rows)}"
    without_words = any(counts.words == 0 for counts in speakers.values())
    return report + (_FOOTNOTE if without_words and not raw else "")


def _cell(value: float, decimals: int, mark: str = " ") -> str:
    """Format a number, rounded half away from zero."""
    scale = 10.0**decimals
    rounded = int(value * scale + (0.5 if value > 0 else -0.5)) / scale
    return f"{rounded:5.{decimals}f}{mark}"


def _counts_row(label: str, counts: Counts, raw: bool, rule: str) -> TableRow:
    """Format the row of a speaker, or with rule "=" of the sum."""
    values = [getattr(counts, column) for column in _COUNT_COLUMNS]
    if raw:
        cells = [_cell(value, 0) for value in [*values, counts.sentence_errors]]
    elif counts.words or rule == "=":
        cells = [_cell(percent(value, counts.words), 1) for value in values]
    else:  # sclite prints a speaker's counts and a star
        cells = [_cell(value, 0, "*") for value in values]
    cells += [] if raw else [_cell(counts.sentence_error_percent, 1)]
    return TableRow((label, f"{counts.sentences:5d}", f"{counts.words:5d}", *cells), rule=rule)


def _spread_rows(speakers: list[Counts], raw: bool) -> list[TableRow]:
    without_words_at = [number for number, counts in enumerate(speakers) if counts.words == 0]
    columns, last = [], "sentence_errors" if raw else "sentence_error_percent"
    for column in ("sentences", "words", *_COUNT_COLUMNS, last):
        values = [getattr(counts, column) for counts in speakers]
        if column in _COUNT_COLUMNS and not raw:
            pairs = zip(values, speakers, strict=True)
            values = [percent(n, counts.words) if counts.words else float(n) for n, counts in pairs]
            values = _without(values, without_words_at)
        columns.append(spread(values))
    marks = [" "] * len(columns)
    if without_words_at and not raw:
        marks[2:-1] = ["+"] * len(_COUNT_COLUMNS)
    rows, labels = [], (" Mean ", " S.D. ", "Median")
    for label, values in zip(labels, zip(*columns, strict=True), strict=True):
        cells = [_cell(value, 1, mark) for value, mark in zip(values, marks, strict=True)]
        rows.append(TableRow((label, *cells), rule="" if rows else "=", left=False))
    return rows


def _without(values: list[float], positions: list[int]) -> list[float]:
    """Remove the speakers without reference words, reproducing a bug of sclite.

    sclite removes them one by one without adjusting the later positions, so after the first one it
    removes a neighbor instead.
    """
    rest = list(values)
    for position in positions:
        del rest[position]
        rest.append(-1000.0)
    return rest[: len(values) - len(positions)]


def alignment_report(score: Score, line_width: int = DEFAULT_LINE_WIDTH) -> str:
    """Return all alignments by speaker (sclite's `pralign`), in lines of ``line_width`` bytes."""
    by_speaker: dict[str, list[ScoredUtterance]] = {}
    for utterance in score.utterances:
        by_speaker.setdefault(utterance.speaker, []).append(utterance)
    title = f"System name:   {score.title}"
    parts = [f"\n\n\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE\n\n{title}\n\nSpeakers: \n"]
    parts += [f"   {number:2d}:  {name}\n" for number, name in enumerate(by_speaker)]
    parts.append("\n")
    for number, (name, utterances) in enumerate(by_speaker.items()):
        parts.append(f"Speaker sentences{number:4d}:  {name}   #utts: {len(utterances)}\n")
        for utterance in utterances:
            parts.append(_alignment(utterance, score.case_sensitive, line_width) + "\n")
    return "".join(parts) + "\n"


def _alignment(utterance: ScoredUtterance, case_sensitive: bool, line_width: int) -> str:
    counts = utterance.counts
    lines = [
        f"id: ({utterance.id})",
        f"Scores: (#C #S #D #I) {counts.correct} {counts.substitutions} {counts.deletions} "
        f"{counts.insertions}",
    ]
    if case_sensitive:
        lines.append("Attributes: Case_sensitve ")  # sclite's spelling
    columns, start = _columns(utterance, case_sensitive), 0
    while start < len(columns):
        stop = _line_end(columns, start, line_width)
        lines += [""] if start > 0 else []
        indent = ">> " if start > 0 else ""
        rows = zip(*columns[start:stop], strict=True)
        for label, cells in zip(("REF: ", "HYP: ", "Eval:"), rows, strict=True):
            lines.append(f"{indent}{label} {''.join(cells)}")
        start = stop
    return "".join(f"{line}\n" for line in lines)


def _line_end(columns: list[tuple[str, str, str]], start: int, line_width: int) -> int:
    """Return the first column that does not fit on the line that begins at `start`."""
    used, stop = 9 if start > 0 else 6, start
    while used < line_width and stop < len(columns):
        used += byte_width(columns[stop][0])
        stop += 1
    # sclite moves the word that reaches the limit to the next line, even if it just fits.
    return stop if stop == len(columns) else max(stop - 1, start + 1)


def _columns(utterance: ScoredUtterance, case_sensitive: bool) -> list[tuple[str, str, str]]:
    """Return (reference, hypothesis, evaluation) of each position, padded to the same bytes."""
    columns = []
    for operation, reference, hypothesis in utterance.pairs():
        if operation == INSERTION:
            reference = "*" * byte_width(hypothesis)
        elif operation == DELETION:
            hypothesis = "*" * byte_width(reference)
        if operation != CORRECT and not case_sensitive:
            reference = reference.translate(_ASCII_UPPER)
            hypothesis = hypothesis.translate(_ASCII_UPPER)
        texts = reference, hypothesis, "" if operation == CORRECT else operation
        width = max(map(byte_width, texts)) + 1
        columns.append(tuple(flush_left(text, width) for text in texts))
    return columns
