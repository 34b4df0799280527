"""The plan of a report: which experiment and test set belong to which row of which table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet_medusa.errors import InputError
from espnet_medusa.options import build_options, check_choice
from espnet_medusa.report.plan.figure_plan import FigurePlan, read_figure
from espnet_medusa.report.plan.published import MEASURES
from espnet_medusa.report.plan.yaml_file import as_mapping, read_mapping, require

COLUMNS = ("wer", "cer", "speedup", "parameters")  # of a table that does not say
LABEL = "{label}"
WHISPER_MODEL = "{whisper_model}"


@dataclass(frozen=True)
class System:
    """A row of a table.

    Attributes:
        name: As shown.
        exp: Name of the experiment's folder, where needed with folders above it; ``{label}`` in
            it stands for the test set's label.
        decoding: Inference tag; its part ``_asr_model_...`` may be left out.
        draft_model: Checkpoint of a second model that drafts, counted among the parameters, such
            as ``asr_draft/valid.acc.ave.pth`` beside the folder of this row's experiment.
    """

    name: str
    exp: str
    decoding: str
    draft_model: str | None = None


@dataclass(frozen=True)
class TablePlan:
    """A table.

    Attributes:
        title: As shown.
        test_sets: Folder name of each test set to its label.
        systems: Rows by key.
        plain: Key of the system that the others are compared with.
        columns: What to show of each row, names of ``MEASURES``.
        corpus: Key in ``corpora.yaml``; None: a corpus of no known size, shown as it is.
        utterances: Size by label, for sets whose size ``corpora.yaml`` does not know.
        published: Key in ``published.yaml``; None: there is no published table.
        model: What the experiments are of, needed beside published figures; ``{whisper_model}``
            in it stands for the Whisper that ``whisper.sh`` recorded beside the experiments.
        figure: A plot to go with it.
    """

    title: str
    test_sets: Mapping[str, str]
    systems: Mapping[str, System]
    plain: str
    columns: tuple[str, ...] = COLUMNS
    corpus: str | None = None
    utterances: Mapping[str, int] = field(default_factory=dict)
    published: str | None = None
    model: str | None = None
    figure: FigurePlan | None = None


@dataclass(frozen=True)
class IncludedFile:
    """A section that another program wrote.

    Attributes:
        title: As shown.
        file: Markdown, from the folder where the report is made; it may be missing.
    """

    title: str
    file: str


@dataclass(frozen=True)
class ReportPlan:
    """All tables of a report, and sections that others wrote behind them."""

    title: str
    tables: tuple[TablePlan, ...]
    included: tuple[IncludedFile, ...] = ()


def read_plan(path: Path) -> ReportPlan:
    """Read ``conf/report/*.yaml``.

    Raises:
        InputError: The file is malformed or names what is not there.
    """
    content = read_mapping(path)
    where = str(path)
    require(content, ("title", "tables"), where)
    tables = content["tables"]
    if not isinstance(tables, list):
        raise InputError(f"{where}: tables: {tables!r}; a list of tables is needed")
    tables = tuple(_table(table, f"{where}: table {n}") for n, table in enumerate(tables, 1))
    included = _included(content.get("included"), f"{where}: included")
    return build_options(ReportPlan, {**content, "tables": tables, "included": included}, where)


def _included(content: Any, where: str) -> tuple[IncludedFile, ...]:
    if not isinstance(content, list | None):
        raise InputError(f"{where}: {content!r}; a list of title and file is needed")
    files = []
    for number, one in enumerate(content or [], 1):
        place = f"{where}: {number}"
        one = as_mapping(one, place)
        require(one, ("title", "file"), place)
        files.append(build_options(IncludedFile, one, place))
    return tuple(files)


def _table(content: Any, where: str) -> TablePlan:
    content = as_mapping(content, where)
    require(content, ("title", "test_sets", "systems", "plain"), where)
    content["test_sets"] = {
        name: str(label)
        for name, label in as_mapping(content["test_sets"], f"{where}: test_sets").items()
    }
    systems = as_mapping(content["systems"], f"{where}: systems")
    content["systems"] = {
        key: _system(system, f"{where}: systems: {key}") for key, system in systems.items()
    }
    check_choice(content["plain"], list(systems), f"{where}: plain")
    content["model"] = _model(content.get("model"), content.get("published"), f"{where}: model")
    content["utterances"] = _sizes(content.get("utterances"), f"{where}: utterances")
    content["columns"] = _columns(content.get("columns"), f"{where}: columns")
    if content.get("figure") is not None:
        content["figure"] = read_figure(content["figure"], list(systems), f"{where}: figure")
    return build_options(TablePlan, content, where)


def _system(content: Any, where: str) -> System:
    content = as_mapping(content, where)
    require(content, ("name", "exp", "decoding"), where)
    return build_options(System, content, where)


def _model(content: Any, published: Any, where: str) -> str | None:
    if content is None and published is None:
        return None
    if not isinstance(content, str) or not content:
        raise InputError(
            f"{where}: {content!r}; beside published figures a text is needed that says what the "
            f"experiments are of, or {WHISPER_MODEL}"
        )
    return content


def _columns(content: Any, where: str) -> tuple[str, ...]:
    if content is None:
        return COLUMNS
    if not isinstance(content, list) or not content:
        raise InputError(f"{where}: {content!r}; a list of {', '.join(MEASURES)} is needed")
    for name in content:
        check_choice(name, MEASURES, where)
    return tuple(dict.fromkeys(content))


def _sizes(content: Any, where: str) -> dict[str, int]:
    sizes = {} if content is None else as_mapping(content, where)
    for label, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f"{where}: {label}: {size!r}; a number of utterances is needed")
    return sizes
