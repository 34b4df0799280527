"""Plans in YAML: searches, and the drafters that are compared in them.

title: "Drafters: Whisper base"
options: {ctc_weight: 0.0}                      # decode options of all rows
searches:                                       # decode options by name
    greedy: {search: greedy}
drafters:                                       # the first one is the baseline
    baseline: {experiment: exp/base, options: {draft_depth: 0}}
    heads: {experiment: exp/heads, options: {draft_depth: 5}}
    CTC: {experiment: exp/ctc, options: {drafter: ctc}, grid: {draft_depth: [5, 10]}}
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from contestants.ways import Way

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import build_options, check_choice
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.recipes.report.plan import as_mapping, read_fields, read_mapping

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Drafter:
    """A row of each search's table."""

    experiment: str  # folder with ``config.yaml``
    # Weights; None: those that training or conversion writes there.
    experiment_file: str | None = None
    options: Options = field(default_factory=dict)  # decode options
    # Files with decode options by search, such as those of ``espnet-medusa-tune``; the drafter then
    # appears only in these searches.
    configs: Mapping[str, str] = field(default_factory=dict)
    # Values by decode option; each combination is a row of its own.
    grid: Mapping[str, list] = field(default_factory=dict)
    # Names of the searches in which it appears; empty: all.
    searches: list[str] = field(default_factory=list)
    # Window of Whisper's encoder, ``whisper`` or ``audio``; None: as trained.
    window: str | None = None
    curve: str | None = None  # name of its learning curve
    hours: float | None = None  # hours of speech that it was trained on

    @property
    def config(self) -> Path:
        return Path(self.experiment) / "config.yaml"

    @property
    def weights(self) -> Path:
        folder = Path(self.experiment)
        return Path(self.experiment_file or find_weights(folder, "experiment"))

    def takes_part(self, search: str) -> bool:
        """Return whether the drafter appears in a search."""
        return search in (self.configs or self.searches or [search])


@dataclass(frozen=True)
class Row:
    """A drafter in a search, with all its decode options."""

    search: str
    name: str
    drafter: Drafter
    options: Options

    @property
    def greedy(self) -> bool:
        """Whether the search has one hypothesis."""
        return self.options.get("search") == "greedy"

    def way(self, batch_size: int) -> Way:
        """Return the key of the row's measurements; it changes with weights and options."""
        drafter = self.drafter
        weights = [str(drafter.weights), drafter.weights.stat().st_mtime]
        made_with = {"weights": weights, "options": dict(self.options), "window": drafter.window}
        return Way(self.name, "", self.search, batch_size, made_with=json.dumps(made_with))


@dataclass(frozen=True)
class Plan:
    """The content of a plan in YAML."""

    title: str  # title of the report
    searches: Mapping[str, Options]  # decode options by name
    drafters: Mapping[str, Drafter]  # drafters by name; the first is the baseline of the others
    options: Options = field(default_factory=dict)  # decode options of all rows

    def rows(
        self, searches: list[str] | None = None, drafters: list[str] | None = None
    ) -> tuple[list[Row], dict[str, str]]:
        """Return the rows whose files exist, search by search.

        Args:
            searches: Names; None: all.
            drafters: Names besides the first; None: all.

        Returns:
            Rows, and by drafter why it is left out.

        Raises:
            InputError: A name is unknown, or the first drafter's experiment is missing.
        """
        for name in searches or []:
            check_choice(name, [*self.searches], "searches")
        for name in drafters or []:
            check_choice(name, [*self.drafters], "drafters")
        first, rows, left_out = next(iter(self.drafters)), [], {}
        for search in searches or self.searches:
            for name, drafter in self.drafters.items():
                unwanted = name != first and drafters is not None and name not in drafters
                if unwanted or not drafter.takes_part(search):
                    continue
                configs = [Path(drafter.configs[search])] if search in drafter.configs else []
                files = [drafter.config, *configs]
                missing = [str(path) for path in files if not path.is_file()]
                if missing and name == first:
                    raise InputError(f"{missing[0]}: no such file; run from the recipe's folder")
                if missing:
                    left_out[name] = f"{', '.join(missing)}: not there"
                    continue
                options = {**self.options, **self.searches[search], **drafter.options}
                for config in configs:
                    options |= read_mapping(config)
                rows.append(Row(search, name, drafter, options))
        return rows, left_out


def read_plan(path: Path) -> Plan:
    """Read a plan; raise InputError if the file is missing or malformed."""
    where = str(path)
    content = read_fields(Plan, read_mapping(path), where)
    searches = {
        name: as_mapping(options, f"{where}: searches: {name}")
        for name, options in as_mapping(content["searches"], f"{where}: searches").items()
    }
    drafters = dict(
        member
        for name, fields in as_mapping(content["drafters"], f"{where}: drafters").items()
        for member in _expand(name, _drafter(fields, searches, f"{where}: drafters: {name}"))
    )
    return build_options(Plan, {**content, "searches": searches, "drafters": drafters}, where)


def _drafter(content: Any, searches: Mapping[str, Options], where: str) -> Drafter:
    content = read_fields(Drafter, content, where)
    for name in ("configs", "searches"):
        for search in content.get(name, []):
            check_choice(search, [*searches], f"{where}: {name}")
    if (content.get("curve") is None) != (content.get("hours") is None):
        raise InputError(f"{where}: curve and hours; allowed: both or neither")
    return build_options(Drafter, content, where)


def _expand(name: str, drafter: Drafter) -> Iterator[tuple[str, Drafter]]:
    """Yield a drafter for each combination of its grid."""
    for values in product(*drafter.grid.values()):
        chosen = dict(zip(drafter.grid, values, strict=True))
        words = [f"{option} {value}" for option, value in chosen.items() if value is not None]
        options = {**drafter.options, **chosen}
        yield ", ".join([name, *words]), replace(drafter, options=options, grid={})
