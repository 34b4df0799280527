"""What decoding made of a CSV file's rows, as a CSV file: its columns, prediction, wer, cer."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jiwer

from espnet_medusa.errors import InputError
from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.kaldi.csv_import import SENTENCE, CsvRow, read_csv
from espnet_medusa.kaldi.table import read_results
from espnet_medusa.scoring.trn import list_some

PREDICTION, WER, CER, ERROR = "prediction", "wer", "cer", "error"
ADDED = (PREDICTION, WER, CER, ERROR)
FAILED = "failed_utterances"


@dataclass
class _Totals:
    """Errors and length of the references: words or characters."""

    errors: int = 0
    length: int = 0

    def add(self, counts: jiwer.WordOutput | jiwer.CharacterOutput) -> float:
        """Count a pair in; returns its own rate."""
        errors = counts.substitutions + counts.deletions + counts.insertions
        length = counts.substitutions + counts.deletions + counts.hits
        self.errors, self.length = self.errors + errors, self.length + length
        return errors / length

    @property
    def rate(self) -> float | None:
        """Errors over length, None without references."""
        return self.errors / self.length if self.length else None


@dataclass
class CsvResults:
    """What was written.

    Attributes:
        rows: Number of rows.
        missing: Line of each row without a hypothesis, and why.
        words, characters: Totals over the rows that have one.
    """

    rows: int = 0
    missing: dict[int, str] = field(default_factory=dict)
    words: _Totals = field(default_factory=_Totals)
    characters: _Totals = field(default_factory=_Totals)


def write_csv_results(
    path: Path, result_dir: Path, output: Path, clean: Callable[[str], str] = str
) -> CsvResults:
    """Write every row of a CSV file with what was decoded for it.

    Rates are errors over the reference's length, 0.25 for 25%; a row without a hypothesis has
    none, and its reason in the column ``error``.

    Args:
        path: The CSV file that the data directory was made from.
        result_dir: Holds the merged ``text``, and ``failed_utterances`` where there are some.
        output: The CSV file to write.
        clean: Applied to reference and hypothesis before they are compared.

    Raises:
        InputError: A file is not usable, or the results are of another CSV file.
    """
    table = read_csv(path)
    taken = [name for name in ADDED if name in table.columns]
    if taken:
        raise InputError(f"{path}: has a column {taken[0]} already, which is added; rename it")
    if not (result_dir / "text").is_file():
        raise InputError(f"{result_dir / 'text'}: no such file; decode first, or mend the path")
    texts, failed = read_results(result_dir / "text"), read_results(result_dir / FAILED)
    unknown = (texts.keys() | failed.keys()) - {row.id for row in table.rows}
    if unknown:
        raise InputError(
            f"{result_dir / 'text'}: ids that are not of {path}: {list_some(sorted(unknown))}; "
            "give the CSV file that the data directory was made from, unchanged"
        )
    results = CsvResults()
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*table.columns, *ADDED])
    for row in table.rows:
        added = _score(row, texts.get(row.id), failed.get(row.id), clean, results)
        writer.writerow([*(row.fields.get(name, "") for name in table.columns), *added])
    write_atomically(output, stream.getvalue())
    return results


def _score(
    row: CsvRow,
    prediction: str | None,
    reason: str | None,
    clean: Callable[[str], str],
    results: CsvResults,
) -> tuple[str, str, str, str]:
    """The added columns of a row; counts it in."""
    results.rows += 1
    if prediction is None:
        reason = reason or (str(row.problem) if row.problem else "no hypothesis; not decoded")
        results.missing[row.line] = reason
        return "", "", "", reason
    reference, hypothesis = clean(row.fields[SENTENCE]), clean(prediction)
    if not reference.split():
        return prediction, "", "", "not scored: the sentence is empty"
    wer = results.words.add(jiwer.process_words(reference, hypothesis))
    cer = results.characters.add(jiwer.process_characters(reference, hypothesis))
    return prediction, f"{wer:.6g}", f"{cer:.6g}", ""
