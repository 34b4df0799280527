"""Write the rows of a CSV file with added columns: prediction, wer, cer, error."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jiwer

from espnet_medusa.data.errors import InputError, list_some
from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.kaldi.table import join_words, read_results
from espnet_medusa.recipes.kaldi.csv_import import SENTENCE, CsvRow, read_csv

ADDED = ("prediction", "wer", "cer", "error")
FAILED = "failed_utterances"


@dataclass
class CsvResults:
    rows: int
    missing: dict[int, str]  # line of each row without a hypothesis, and the reason
    references: list[str]  # of the scored rows
    hypotheses: list[str]
    inserted: list[str] = field(default_factory=list)  # hypotheses of rows without a sentence

    def error_rates(self) -> dict[str, float]:
        """Return WER and CER of all decoded rows together; nothing without a sentence."""
        measures = {"WER": (jiwer.wer, _count_words), "CER": (jiwer.cer, len)}
        rates = {}
        for name, (rate, count) in measures.items() if self.references else ():
            total, insertions = (sum(map(count, one)) for one in (self.references, self.inserted))
            rates[name] = rate(self.references, self.hypotheses) + insertions / total
        return rates

    def add(
        self, row: CsvRow, prediction: str | None, reason: str | None, clean: Callable[[str], str]
    ) -> tuple[str, str, str, str]:
        """Return the added columns of a row and collect it for the totals."""
        if prediction is None:
            reason = reason or (str(row.problem) if row.problem else "no hypothesis; not decoded")
            self.missing[row.line] = reason
            return "", "", "", reason
        # jiwer separates words only at spaces.
        texts = (row.fields[SENTENCE], prediction)
        reference, hypothesis = (join_words(clean(text)) for text in texts)
        if not reference:
            self.inserted.append(hypothesis)
            words = _count_words(hypothesis)
            error = f"the sentence is empty; insertions: {words}" if words else ""
            return prediction, "", "", error
        self.references.append(reference)
        self.hypotheses.append(hypothesis)
        wer, cer = jiwer.wer(reference, hypothesis), jiwer.cer(reference, hypothesis)
        return prediction, f"{wer:.6g}", f"{cer:.6g}", ""


def _count_words(text: str) -> int:
    return len(text.split())


def write_csv_results(
    path: Path, result_dir: Path, output: Path, clean: Callable[[str], str] = str
) -> CsvResults:
    """Write every row of a CSV file with its decoded text.

    Rates are errors over the reference's length, 0.25 for 25%. A row without a hypothesis has no
    rates; the column ``error`` has the reason. Raises InputError if a file is not usable, or the
    results belong to another CSV file.

    Args:
        path: The CSV file that the data directory was made from.
        result_dir: Contains the merged ``text``, and ``failed_utterances`` if there are some.
        clean: Applied to reference and hypothesis before they are compared.
    """
    columns, rows = read_csv(path)
    existing = [name for name in ADDED if name in columns]
    if existing:
        raise InputError(f"{path}: has a column {existing[0]}, which the results add; rename it")
    if not (result_dir / "text").is_file():
        raise InputError(f"{result_dir / 'text'}: no such file; decode first, or correct the path")
    texts, failed = read_results(result_dir / "text"), read_results(result_dir / FAILED)
    unknown = (texts.keys() | failed.keys()) - {row.id for row in rows}
    if unknown:
        raise InputError(
            f"{result_dir / 'text'}: ids that {path} does not have: {list_some(sorted(unknown))}; "
            "give the CSV file that the data directory was made from, unchanged"
        )
    results = CsvResults(len(rows), {}, [], [])
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*columns, *ADDED])
    for row in rows:
        added = results.add(row, texts.get(row.id), failed.get(row.id), clean)
        writer.writerow([*(row.fields.get(name, "") for name in columns), *added])
    write_atomically(output, stream.getvalue())
    return results
