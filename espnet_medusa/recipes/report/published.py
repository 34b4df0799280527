"""Read the figures of published papers and the sizes of corpora, with their sources."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_choice
from espnet_medusa.recipes.report.columns import COLUMNS
from espnet_medusa.recipes.report.plan import read_entry, read_mapping

PUBLISHED = Path(__file__).with_name("published.yaml")
CORPORA = Path(__file__).with_name("corpora.yaml")
CELL_MEASURES = tuple(name for name in (*COLUMNS, "latency_s") if name != "parameters")
PRINTED = re.compile(r"-|\d+(\.\d+)?")


@dataclass(frozen=True)
class PublishedSystem:
    name: str  # as in the paper
    cells: Mapping[str, Any]  # numbers as printed, ``-`` if missing, by label of the test set
    parameters: Any = None  # text, in millions, as printed; None: not printed


@dataclass(frozen=True)
class Statement:
    """A sentence of a paper, in place of figures that its tables lack."""

    text: str
    source: str


@dataclass(frozen=True)
class PublishedTable:
    source: str  # authors, paper and number of the table
    model: str  # model of the figures, such as ``Whisper large-v2``
    data: str = ""  # test data and machine
    measures: tuple[str, ...] = ()  # of the numbers in a cell, names of ``CELL_MEASURES``
    # Rows by key; a row with the same key in our table is the same system.
    systems: Mapping[str, PublishedSystem] = field(default_factory=dict)
    statements: tuple[Statement, ...] = ()

    @property
    def test_sets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(label for row in self.systems.values() for label in row.cells))

    @property
    def figures(self) -> dict[tuple[str, str, str], str]:
        """All numbers as printed, by system, test set and measure."""
        figures = {}
        for key, row in self.systems.items():
            for label, numbers in row.cells.items():
                printed = zip(self.measures, numbers.split(), strict=True)
                for name, value in (*printed, ("parameters", row.parameters or "-")):
                    if value != "-":
                        figures[key, label, name] = value
        return figures


def read_published(path: Path = PUBLISHED) -> dict[str, PublishedTable]:
    """Read published tables by key; raise InputError for a missing source, model or number."""
    tables = read_entry(Mapping[str, PublishedTable], read_mapping(path), str(path))
    for key, table in tables.items():
        for measure in table.measures:
            check_choice(measure, CELL_MEASURES, f"{path}: {key}: measures")
        for name, row in table.systems.items():
            where = f"{path}: {key}: systems: {name}"
            for label, numbers in row.cells.items():
                _check_numbers(numbers, table.measures, f"{where}: cells: {label}")
            if row.parameters is not None:
                _check_numbers(row.parameters, ("parameters",), f"{where}: parameters")
    return tables


def _check_numbers(content: object, measures: Sequence[str], where: str) -> None:
    """Check for a number per measure, as text because YAML numbers lose trailing zeros."""
    values = content.split() if isinstance(content, str) else []
    if len(values) != len(measures) or not all(map(PRINTED.fullmatch, values)):
        raise InputError(
            f"{where}: {content!r}; needed in quotes: {' '.join(measures)}, as in the paper, - for "
            "a missing number"
        )


@dataclass(frozen=True)
class SetSize:
    """Size of a corpus's set; None: unknown."""

    utterances: int | None = None
    source: str = ""


Corpora = Mapping[str, Mapping[str, SetSize]]  # by corpus and label of the set


def read_corpora(path: Path = CORPORA) -> Corpora:
    """Read the sizes; raise InputError if the file is malformed or a size has no source."""
    corpora = read_entry(Corpora, read_mapping(path), str(path))
    for corpus, sets in corpora.items():
        for name, size in sets.items():
            if size.utterances is not None and not size.source:
                where = f"{path}: {corpus}: {name}"
                raise InputError(f"{where}: {size.utterances} without a source; name it")
    return corpora
