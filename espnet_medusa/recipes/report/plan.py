"""Read the plan of a report: its tables with rows, columns and figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import build_options, check_at_least, check_choice, read_yaml
from espnet_medusa.recipes.report.columns import COLUMNS

DEFAULT_COLUMNS = ("wer", "cer", "speedup", "parameters")
LABEL = "{label}"
WHISPER_MODEL = "{whisper_model}"

SPEEDUP_BY_LENGTH, CALLS_PER_WORD = "speedup_by_length", "calls_per_word"
CALLS_AGAINST_WER = "calls_against_wer"
SCATTER_KEYS = ("title", "groups", "points")
FIGURE_KEYS = {  # needed in a plan, by kind of figure
    SPEEDUP_BY_LENGTH: ("title", "systems"),
    **dict.fromkeys(("wer_against_eta", "wer_against_latency", "wer_against_calls"), SCATTER_KEYS),
    CALLS_AGAINST_WER: (*SCATTER_KEYS, "wer_of"),
    CALLS_PER_WORD: ("title", "groups"),
}


@dataclass(frozen=True)
class CallsAndWer:
    """The two systems of a point."""

    calls: str  # key of the system with the decoder calls
    wer: str  # key of the system with the WER


@dataclass(frozen=True)
class FigurePlan:
    kind: str  # key of ``FIGURE_KEYS``
    title: str  # as shown
    systems: tuple[str, ...] = ()  # keys of the systems to draw (speedup_by_length)
    bin_tokens: int = 10  # tokens per bin (speedup_by_length)
    # Systems by group (its color) and variant (its marker or hatch). In scatter plots, a variant
    # maps the label of each point to a system's key, or to ``CallsAndWer``.
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    points: str = ""  # meaning of the points' labels (scatter plots)
    wer_of: str = ""  # of the axis label `WER of`: ``greedy CTC`` (calls_against_wer)


@dataclass(frozen=True)
class System:
    name: str  # as shown
    exp: str  # last parts of the experiment's path; ``{label}`` is the test set's label
    decoding: str  # inference tag, with or without its part ``_asr_model_...``
    # Checkpoint of a draft model, counted among the parameters: a path relative to the parent of
    # the experiment folder, such as ``asr_draft/valid.acc.ave.pth``.
    draft_model: str | None = None


@dataclass(frozen=True)
class TablePlan:
    title: str  # as shown
    test_sets: Mapping[str, str]  # folder name of each test set to its label
    systems: Mapping[str, System]  # rows by key
    baseline: str  # key of the baseline
    columns: tuple[str, ...] = DEFAULT_COLUMNS  # names of ``COLUMNS``
    corpus: str | None = None  # key in ``corpora.yaml``; None: a corpus of unknown size
    utterances: Mapping[str, int] = field(default_factory=dict)  # by label, if not in corpora.yaml
    published: str | None = None  # key in ``published.yaml``; None: no published table
    # Model of the experiments, needed with published figures; ``{whisper_model}`` is replaced by
    # the Whisper that ``whisper.sh`` recorded.
    model: str | None = None
    figure: FigurePlan | None = None  # a plot below the table
    command: str = ""  # decodes the systems; shown if some were not run


@dataclass(frozen=True)
class IncludedFile:
    """A section from a Markdown file, which may be missing; relative to the working directory."""

    title: str
    file: str


@dataclass(frozen=True)
class ReportPlan:
    title: str
    tables: tuple[TablePlan, ...]
    included: tuple[IncludedFile, ...] = ()


def read_plan(path: Path) -> ReportPlan:
    """Read ``conf/report/*.yaml``; raise InputError if it is malformed or has unknown names."""
    content = read_fields(ReportPlan, read_mapping(path), str(path))
    tables = as_list(content["tables"], f"{path}: tables", "tables")
    content["tables"] = tuple(
        _table(table, f"{path}: table {n}") for n, table in enumerate(tables, 1)
    )
    included = read_entry(tuple[IncludedFile, ...], content.get("included"), f"{path}: included")
    return build_options(ReportPlan, content | {"included": included}, str(path))


def _table(content: Any, where: str) -> TablePlan:
    content = read_fields(TablePlan, content, where)
    test_sets = as_mapping(content["test_sets"], f"{where}: test_sets")
    systems = read_entry(Mapping[str, System], content["systems"], f"{where}: systems")
    check_choice(content["baseline"], [*systems], f"{where}: baseline")
    content |= {
        "test_sets": {name: str(label) for name, label in test_sets.items()},
        "systems": systems,
        "utterances": _sizes(content.get("utterances"), f"{where}: utterances"),
        "columns": _columns(content.get("columns"), f"{where}: columns"),
    }
    model = content.get("model")
    if content.get("published") is not None and not model or not isinstance(model, str | None):
        needed = f"with published figures, name the model of the experiments or {WHISPER_MODEL}"
        raise InputError(f"{where}: model: {model!r}; {needed}")
    if content.get("figure") is not None:
        content["figure"] = _figure(content["figure"], [*systems], f"{where}: figure")
    return build_options(TablePlan, content, where)


def _columns(content: Any, where: str) -> tuple[str, ...]:
    if content is None:
        return DEFAULT_COLUMNS
    for name in (columns := as_list(content, where, ", ".join(COLUMNS), empty=False)):
        check_choice(name, [*COLUMNS], where)
    return tuple(dict.fromkeys(columns))


def _sizes(content: Any, where: str) -> dict[str, int]:
    sizes = {} if content is None else as_mapping(content, where)
    for label, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f"{where}: {label}: {size!r}; a number of utterances is needed")
    return sizes


def _figure(content: Any, systems: Sequence[str], where: str) -> FigurePlan:
    content = as_mapping(content, where)
    kind = content.setdefault("kind", SPEEDUP_BY_LENGTH)
    check_choice(kind, [*FIGURE_KEYS], f"{where}: kind")
    require(content, FIGURE_KEYS[kind], where)
    allowed = ("kind", *FIGURE_KEYS[kind], *["bin_tokens"] * (kind == SPEEDUP_BY_LENGTH))
    for name in content:
        check_choice(name, allowed, f"{where}: option")
    if kind == SPEEDUP_BY_LENGTH:
        keys = as_list(content["systems"], f"{where}: systems", "keys")
        content["systems"] = tuple(_system(key, systems, f"{where}: systems") for key in keys)
    else:
        depth = 3 if "points" in content else 2
        read = _calls_and_wer if kind == CALLS_AGAINST_WER else _system
        content["groups"] = _nested(content["groups"], depth, f"{where}: groups", systems, read)
    figure = build_options(FigurePlan, content, where)
    check_at_least(figure.bin_tokens, 1, f"{where}: bin_tokens")
    return figure


def _nested(
    content: Any, depth: int, where: str, systems: Sequence[str], read: Callable[..., Any]
) -> Any:
    """Read mappings of mappings, ``depth`` deep; ``read`` reads the innermost values."""
    if not depth:
        return read(content, systems, where)
    return {
        key: _nested(value, depth - 1, f"{where}: {key}", systems, read)
        for key, value in as_mapping(content, where).items()
    }


def _system(content: Any, systems: Sequence[str], where: str) -> str:
    check_choice(content, systems, where)
    return content


def _calls_and_wer(content: Any, systems: Sequence[str], where: str) -> CallsAndWer:
    pair = read_entry(CallsAndWer, content, where)
    for name, key in vars(pair).items():
        check_choice(key, systems, f"{where}: {name}")
    return pair


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file; raise InputError if it does not contain a mapping."""
    return as_mapping(read_yaml(path, "correct the file or its path"), str(path))


def as_mapping(content: Any, where: str) -> dict[str, Any]:
    """Return a mapping with text keys; raise InputError for an empty one or another type."""
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{where}: {content!r}; a mapping (key: value) is needed")
    return {str(key): value for key, value in content.items()}


def as_list(content: Any, where: str, items: str, empty: bool = True) -> list[Any]:
    """Return a list, [] for None; raise InputError for another type, or for [] if not ``empty``."""
    if not isinstance(content, list | None) or not (content or empty):
        raise InputError(f"{where}: {content!r}; a list of {items} is needed")
    return content or []


def require(content: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    """Raise an InputError that names the keys that a mapping lacks."""
    missing = [name for name in names if content.get(name) in (None, "", [])]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} missing; needed: {', '.join(names)}")


def read_fields(kind: type, content: Any, where: str) -> dict[str, Any]:
    """Return a mapping; raise InputError if it lacks a field of ``kind`` without default."""
    content = as_mapping(content, where)
    # Without a default, both are ``dataclasses.MISSING``.
    names = [entry.name for entry in fields(kind) if entry.default is entry.default_factory]
    require(content, names, where)
    return content


def read_entry(kind: Any, content: Any, where: str) -> Any:
    """Build dataclasses, also in tuples and mappings, from a file's content.

    Raise InputError if a field is missing, unknown or of another type. Null leaves a field unset.
    """
    if is_dataclass(kind):
        types, values = get_type_hints(kind), read_fields(kind, content, where)
        values = {
            name: read_entry(types.get(name), value, f"{where}: {name}")
            for name, value in values.items()
            if value is not None or name not in types
        }
        return build_options(kind, values, where)
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        items = [field.name for field in fields(inner)] if is_dataclass(inner) else ["names"]
        entries = enumerate(as_list(content, where, " and ".join(items)), 1)
        return tuple(read_entry(inner, entry, f"{where}: {n}") for n, entry in entries)
    if get_origin(kind) is Mapping:
        entries = as_mapping(content, where).items()
        inner = get_args(kind)[1]
        return {key: read_entry(inner, entry, f"{where}: {key}") for key, entry in entries}
    return content
