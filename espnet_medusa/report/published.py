"""Read the figures of published papers and the sizes of corpora, with their sources."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.errors import InputError
from espnet_medusa.options import build_options, check_choice
from espnet_medusa.report.columns import COLUMNS
from espnet_medusa.report.plan import (
    as_list,
    as_mapping,
    read_entries,
    read_entry,
    read_fields,
    read_mapping,
)

PUBLISHED = Path(__file__).with_name("published.yaml")
CORPORA = Path(__file__).with_name("corpora.yaml")
CELL_MEASURES = tuple(name for name in (*COLUMNS, "latency_s") if name != "parameters")
PRINTED = re.compile(r"-|\d+(\.\d+)?")


@dataclass(frozen=True)
class PublishedSystem:
    name: str  # as in the paper
    cells: Mapping[str, Mapping[str, str]]  # as printed, by label of the test set and measure
    parameters: str | None = None  # in millions, as printed; None: not printed


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
    measures: tuple[str, ...] = ()  # columns of each test set, names of ``CELL_MEASURES``
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
                if row.parameters is not None:
                    figures[key, label, "parameters"] = row.parameters
                figures |= {(key, label, name): value for name, value in numbers.items()}
        return figures


def read_published(path: Path = PUBLISHED) -> dict[str, PublishedTable]:
    """Read published tables by key; raise InputError for a missing source, model or number."""
    return {key: _table(content, f"{path}: {key}") for key, content in read_mapping(path).items()}


def _table(content: object, where: str) -> PublishedTable:
    content = read_fields(PublishedTable, content, where)
    measures = as_list(content.get("measures"), f"{where}: measures", "names")
    for measure in measures:
        check_choice(measure, CELL_MEASURES, f"{where}: measures")
    systems = content.get("systems")
    systems = {} if systems is None else as_mapping(systems, f"{where}: systems")
    content["measures"] = tuple(measures)
    content["systems"] = {
        key: _system(row, measures, f"{where}: systems: {key}") for key, row in systems.items()
    }
    statements = content.get("statements")
    content["statements"] = read_entries(Statement, statements, f"{where}: statements")
    return build_options(PublishedTable, content, where)


def _system(content: object, measures: Sequence[str], where: str) -> PublishedSystem:
    content = read_fields(PublishedSystem, content, where)
    if content.get("parameters") is not None:
        _numbers(content["parameters"], ("parameters",), f"{where}: parameters")
    content["cells"] = {
        label: _numbers(numbers, measures, f"{where}: cells: {label}")
        for label, numbers in as_mapping(content["cells"], f"{where}: cells").items()
    }
    return build_options(PublishedSystem, content, where)


def _numbers(content: object, measures: Sequence[str], where: str) -> dict[str, str]:
    """Return numbers by measure, as text because YAML numbers lose trailing zeros."""
    values = content.split() if isinstance(content, str) else []
    if len(values) != len(measures) or not all(map(PRINTED.fullmatch, values)):
        raise InputError(
            f"{where}: {content!r}; needed in quotes: {' '.join(measures)}, as in the paper, - for "
            "a missing number"
        )
    return {name: value for name, value in zip(measures, values, strict=True) if value != "-"}


@dataclass(frozen=True)
class SetSize:
    """Size of a corpus's set; None: unknown."""

    utterances: int | None = None
    source: str = ""


Corpora = Mapping[str, Mapping[str, SetSize]]  # by corpus and label of the set


def read_corpora(path: Path = CORPORA) -> Corpora:
    """Read the sizes; raise InputError if the file is malformed or a size has no source."""
    sizes = {}
    for corpus, sets in read_mapping(path).items():
        sizes[corpus] = {}
        for name, entry in as_mapping(sets, f"{path}: {corpus}").items():
            where = f"{path}: {corpus}: {name}"
            size = sizes[corpus][name] = read_entry(SetSize, entry, where)
            if size.utterances is not None and not size.source:
                raise InputError(f"{where}: {size.utterances} without a source; name it")
    return sizes
