"""What the papers report, and how large the corpora are: figures with their sources."""

from collections.abc import Mapping
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


@dataclass(frozen=True)
class Figure:
    """A published number.

    Attributes:
        system: Key of the system in a report's table.
        measure: One of ``MEASURES``; error rates in percent, parameters in millions.
        value: As printed.
        source: Where it was read.
        test_set: Label of the test set; None for ``parameters``.
    """

    system: str
    measure: str
    value: float
    source: str
    test_set: str | None = None


@dataclass(frozen=True)
class Statement:
    """What a source says of a table's subject without giving a cell of it."""

    text: str
    source: str


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper, as far as its figures are at hand."""

    name: str
    figures: tuple[Figure, ...] = ()
    statements: tuple[Statement, ...] = ()

    def value(self, system: str, test_set: str, measure: str) -> float | None:
        """The published number, None where it is not at hand."""
        place = None if measure == "parameters" else test_set
        for figure in self.figures:
            if (figure.system, figure.test_set, figure.measure) == (system, place, measure):
                return figure.value
        return None


def read_published(path: Path = PUBLISHED) -> dict[str, PublishedTable]:
    """Published tables by key.

    Raises:
        InputError: The file is malformed, a figure names no source, or one is there twice.
    """
    return {key: _table(content, f"{path}: {key}") for key, content in read_mapping(path).items()}


def _table(content: object, where: str) -> PublishedTable:
    content = as_mapping(content, where)
    require(content, ("name",), where)
    parts = {}
    for name, kind in (("figures", Figure), ("statements", Statement)):
        entries = content.get(name) or []
        if not isinstance(entries, list):
            raise InputError(f"{where}: {name}: {entries!r}; a list is needed")
        parts[name] = tuple(
            _entry(kind, entry, f"{where}: {name} {number}")
            for number, entry in enumerate(entries, 1)
        )
    table = build_options(PublishedTable, {**content, **parts}, where)
    places = [(figure.system, figure.test_set, figure.measure) for figure in table.figures]
    repeated = [place for place in places if places.count(place) > 1]
    if repeated:
        raise InputError(f"{where}: {repeated[0]} is there more than once; keep one figure")
    return table


def _entry(kind: type, content: object, where: str):
    content = as_mapping(content, where)
    require(content, ("source",), where)
    if kind is Statement:
        require(content, ("text",), where)
        return build_options(kind, content, where)
    require(content, ("system", "measure", "value"), where)
    check_choice(content["measure"], MEASURES, where)
    if isinstance(content["value"], bool) or not isinstance(content["value"], int | float):
        raise InputError(f"{where}: value {content['value']!r}; a number is needed")
    if (content["measure"] == "parameters") != (content.get("test_set") is None):
        raise InputError(f"{where}: test_set is needed, but for parameters, which have none")
    return build_options(kind, content, where)


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
