"""What the papers report, and how large the corpora are: figures with their sources."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.errors import InputError
from espnet_medusa.options import build_options, check_choice
from espnet_medusa.report.plan.yaml_file import as_mapping, read_mapping, require

PUBLISHED = Path(__file__).with_name("published.yaml")
CORPORA = Path(__file__).with_name("corpora.yaml")
MEASURES = (
    *("wer", "cer", "eta", "tokens_per_call", "calls", "calls_per_utterance", "nodes_per_call"),
    *("acceptance", "draft_calls", "draft_ms", "latency", "decoder_rtf", "decoder_speedup"),
    *("speedup", "same_text", "parameters"),
)
PUBLISHED_MEASURES = (*MEASURES, "latency_s")
CELL_MEASURES = tuple(name for name in PUBLISHED_MEASURES if name != "parameters")
PRINTED = re.compile(r"-|\d+(\.\d+)?")


@dataclass(frozen=True)
class PublishedSystem:
    """A row of a paper's table.

    Attributes:
        name: As the paper calls it.
        cells: Numbers as printed, by label of the test set and measure; without those that are
            not printed.
        parameters: In millions, as printed; None: not printed.
    """

    name: str
    cells: Mapping[str, Mapping[str, str]]
    parameters: str | None = None


@dataclass(frozen=True)
class Statement:
    """What a source says of a table's subject without giving a cell of it."""

    text: str
    source: str


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper, as far as its figures are at hand.

    Attributes:
        source: Authors, paper and number of the table.
        model: What the figures are of, such as ``Whisper large-v2``.
        data: What was decoded, and on which machine.
        measures: Columns for each test set, names of ``PUBLISHED_MEASURES``.
        systems: Rows; a key that a report's table has too is the same system.
        statements: What the paper says in words.
    """

    source: str
    model: str
    data: str = ""
    measures: tuple[str, ...] = ()
    systems: Mapping[str, PublishedSystem] = field(default_factory=dict)
    statements: tuple[Statement, ...] = ()

    @property
    def test_sets(self) -> tuple[str, ...]:
        """Labels of the test sets."""
        return tuple(dict.fromkeys(label for row in self.systems.values() for label in row.cells))

    @property
    def figures(self) -> dict[tuple[str, str, str], str]:
        """All numbers as printed, by system, test set and measure."""
        found = {}
        for key, row in self.systems.items():
            for label, numbers in row.cells.items():
                if row.parameters is not None:
                    found[key, label, "parameters"] = row.parameters
                found |= {(key, label, name): value for name, value in numbers.items()}
        return found


def read_published(path: Path = PUBLISHED) -> dict[str, PublishedTable]:
    """Published tables by key.

    Raises:
        InputError: The file is malformed, a table names no source or model, or a row has more or
            fewer numbers than the table has measures.
    """
    return {key: _table(content, f"{path}: {key}") for key, content in read_mapping(path).items()}


def _table(content: object, where: str) -> PublishedTable:
    content = as_mapping(content, where)
    require(content, ("source", "model"), where)
    measures = _list(content.get("measures"), f"{where}: measures")
    for measure in measures:
        check_choice(measure, CELL_MEASURES, f"{where}: measures")
    systems = {}
    if content.get("systems") is not None:
        for key, row in as_mapping(content["systems"], f"{where}: systems").items():
            systems[key] = _system(row, measures, f"{where}: systems: {key}")
    statements = tuple(
        _statement(entry, f"{where}: statements {number}")
        for number, entry in enumerate(_list(content.get("statements"), f"{where}: statements"), 1)
    )
    parts = {"measures": tuple(measures), "systems": systems, "statements": statements}
    return build_options(PublishedTable, {**content, **parts}, where)


def _system(content: object, measures: Sequence[str], where: str) -> PublishedSystem:
    content = as_mapping(content, where)
    require(content, ("name", "cells"), where)
    if content.get("parameters") is not None:
        _numbers(content["parameters"], ("parameters",), f"{where}: parameters")
    cells = {
        label: _numbers(numbers, measures, f"{where}: cells: {label}")
        for label, numbers in as_mapping(content["cells"], f"{where}: cells").items()
    }
    return build_options(PublishedSystem, {**content, "cells": cells}, where)


def _numbers(content: object, measures: Sequence[str], where: str) -> dict[str, str]:
    """Numbers by measure; text, as a number in YAML loses its last zeros."""
    values = content.split() if isinstance(content, str) else []
    if len(values) != len(measures) or not all(map(PRINTED.fullmatch, values)):
        raise InputError(
            f"{where}: {content!r}; needed in quotes: {' '.join(measures)}, as printed, - for what "
            "is not"
        )
    return {name: value for name, value in zip(measures, values, strict=True) if value != "-"}


def _statement(content: object, where: str) -> Statement:
    content = as_mapping(content, where)
    require(content, ("text", "source"), where)
    return build_options(Statement, content, where)


def _list(content: object, where: str) -> list:
    if content is not None and not isinstance(content, list):
        raise InputError(f"{where}: {content!r}; a list is needed")
    return content or []


@dataclass(frozen=True)
class SetSize:
    """Size of a corpus's set; None: not known."""

    utterances: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Corpora:
    """Sizes of the sets, by corpus and label of the set."""

    sizes: Mapping[str, Mapping[str, SetSize]] = field(default_factory=dict)

    def utterances(self, corpus: str, test_set: str) -> int | None:
        """Utterances of a set, None where that is not known.

        Raises:
            InputError: No such corpus.
        """
        check_choice(corpus, sorted(self.sizes), "corpus")
        return self.sizes[corpus].get(test_set, SetSize()).utterances


def read_corpora(path: Path = CORPORA) -> Corpora:
    """The sizes.

    Raises:
        InputError: The file is malformed, or a size names no source.
    """
    sizes = {}
    for corpus, sets in read_mapping(path).items():
        sizes[corpus] = {}
        for name, entry in as_mapping(sets, f"{path}: {corpus}").items():
            where = f"{path}: {corpus}: {name}"
            size = build_options(SetSize, as_mapping(entry, where), where)
            if size.utterances is not None and not size.source:
                raise InputError(f"{where}: {size.utterances} without a source; name it")
            sizes[corpus][name] = size
    return Corpora(sizes)
