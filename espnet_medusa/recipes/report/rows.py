"""Find the decoding of each row of a table, and measure it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_choice
from espnet_medusa.recipes.report.columns import measure_all
from espnet_medusa.recipes.report.decodings import DecodedSet, is_configuration
from espnet_medusa.recipes.report.incomplete import TRAINING, IncompleteSets
from espnet_medusa.recipes.report.plan import LABEL, WHISPER_MODEL, System, TablePlan
from espnet_medusa.recipes.report.published import Corpora, SetSize

NOT_RUN, NOT_COMPLETE = "not run", "not complete"
RECORD = "whisper_model"  # written by whisper.sh into the parent of the experiment folders


@dataclass(frozen=True)
class SystemRow:
    system: str  # key of the system
    test_set: str  # label of the test set
    absent: str = ""  # why there are no measures; empty if it was measured
    values: Mapping[str, Any] = field(default_factory=dict)  # by column; missing or None: unknown
    compared: int = 0  # utterances in common with the baseline
    decoding: DecodedSet | None = None  # may lack utterances of the test set


def find_decoding(
    decodings: Sequence[DecodedSet], system: System, test_set: str, label: str
) -> DecodedSet | None:
    """Return the decoding of a row, or None; raise InputError if several fit."""
    exp = system.exp.replace(LABEL, label)
    parts = Path(exp).parts
    of_set = (item for item in decodings if item.test_set == test_set)
    of_system = (item for item in of_set if item.exp_dir.parts[-len(parts) :] == parts)
    fitting = [d for d in of_system if is_configuration(d, d.exp_dir / system.decoding)]
    folders = list(dict.fromkeys(str(item.exp_dir) for item in fitting))
    if len(folders) > 1:
        raise InputError(
            f"{exp}: matches {folders[0]} and {folders[1]}; give only one of them, or add the "
            "parent folder in the report's config"
        )
    if len(fitting) > 1:
        tags = ", ".join(item.tag for item in fitting)
        raise InputError(
            f"{exp}: {test_set}: several decodings fit '{system.decoding}': {tags}; write one of "
            "these in the report's config"
        )
    return fitting[0] if fitting else None


def full_size(table: TablePlan, label: str, corpora: Corpora) -> int | None:
    """Return the whole test set's number of utterances, or None; InputError if sizes differ."""
    given = table.utterances.get(label)
    if table.corpus is None:
        return given
    check_choice(table.corpus, sorted(corpora), "corpus")
    known = corpora[table.corpus].get(label, SetSize()).utterances
    if None not in (known, given) and known != given:
        raise InputError(
            f"{table.title}: utterances: {label}: {given}; the corpus has {known}; remove the entry"
        )
    return given if known is None else known


def shortfall(table: TablePlan, decoding: DecodedSet | None, size: int | None) -> str:
    """Return why a decoding does not cover the whole test set; empty if it does."""
    if decoding is None:
        return NOT_RUN
    count = len(decoding.utterances)
    if size is None:
        return "" if table.corpus is None else f"{count} utterances; size of the set not given"
    return "" if count == size else f"{count} of {size} utterances"


def measure_rows(
    table: TablePlan, decodings: Sequence[DecodedSet], corpora: Corpora, incomplete: IncompleteSets
) -> list[SystemRow]:
    """Return all rows of a table; errors as for ``full_size`` and ``find_decoding``.

    If the plan names no corpus, test sets without a decoding are left out, unless all lack one.
    ``incomplete`` receives experiments with files, such as checkpoints, that cannot be measured.
    """
    by_set = {
        test_set: {
            key: find_decoding(decodings, system, test_set, label)
            for key, system in table.systems.items()
        }
        for test_set, label in table.test_sets.items()
    }
    any_decoded = any(any(found.values()) for found in by_set.values())
    rows = []
    for test_set, found in by_set.items():
        label = table.test_sets[test_set]
        if table.corpus is None and any_decoded and not any(found.values()):
            continue
        size = full_size(table, label, corpora)
        baseline = None if shortfall(table, found[table.baseline], size) else found[table.baseline]
        for key, decoding in found.items():
            row = SystemRow(key, label, shortfall(table, decoding, size), decoding=decoding)
            if not row.absent:
                row = _measured(row, baseline, table.systems[key].draft_model, incomplete)
            rows.append(row)
    return rows


def _measured(
    row: SystemRow, baseline: DecodedSet | None, draft_model: str | None, incomplete: IncompleteSets
) -> SystemRow:
    exp_dir = row.decoding.exp_dir
    with incomplete.noting(exp_dir, exp_dir, TRAINING):
        values = measure_all(row.decoding, baseline, draft_model)
        both = row.decoding.utterances.keys() & baseline.utterances.keys() if baseline else ()
        return replace(row, values=values, compared=len(both))
    return replace(row, absent=NOT_COMPLETE)


def model_name(table: TablePlan, rows: Sequence[SystemRow]) -> str:
    """Return the measured model's name from the plan's ``model``; empty without a decoding."""
    if WHISPER_MODEL not in table.model:
        return table.model
    records = [row.decoding.exp_dir.absolute().parent / RECORD for row in rows if row.decoding]
    if not records:
        return ""
    names = [
        # Only the last part of a local path is shown, because the path is private.
        path.read_text(encoding="utf-8").strip().rstrip("/").split("/")[-1]
        if path.is_file()
        else f"Whisper of unknown size (no file {RECORD} next to the experiments)"
        for path in dict.fromkeys(records)
    ]
    return table.model.replace(WHISPER_MODEL, ", ".join(dict.fromkeys(names)))
