"""The plan of `who_drafts.py`: searches, and who drafts in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet_medusa.errors import InputError
from espnet_medusa.options import build_options, check_choice
from espnet_medusa.report.plan import as_mapping, read_mapping, require

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Drafter:
    """A row of each search's table.

    Attributes:
        experiment: Folder with its ``config.yaml``.
        experiment_file: Its weights; None: those that training or a conversion leaves there.
        options: Decode options.
        configs: Files of decode options by search, such as what ``espnet-medusa-tune`` wrote;
            the drafter then takes part in these searches alone.
        curve: Of a learning curve: its name.
        hours: Of speech that it was trained with.
    """

    experiment: str
    experiment_file: str | None = None
    options: Options = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)
    curve: str | None = None
    hours: float | None = None

    @property
    def config(self) -> Path:
        """Of the experiment."""
        return Path(self.experiment) / "config.yaml"


@dataclass(frozen=True)
class Way:
    """A search with a drafter.

    Attributes:
        search: Name of the search.
        name: Of the drafter.
        drafter: Who drafts.
        options: All decode options.
    """

    search: str
    name: str
    drafter: Drafter
    options: Options

    @property
    def greedy(self) -> bool:
        """Whether there is one hypothesis."""
        return self.options.get("search") == "greedy"


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        title: Of the table.
        searches: Decode options by name.
        drafters: By name; the first is what the others are compared with.
        options: Decode options of all.
    """

    title: str
    searches: Mapping[str, Options]
    drafters: Mapping[str, Drafter]
    options: Options = field(default_factory=dict)

    def ways(
        self, searches: list[str] | None = None, drafters: list[str] | None = None
    ) -> tuple[list[Way], dict[str, str]]:
        """All of them, search by search, without those whose files are not there.

        Args:
            searches: Names; None: all.
            drafters: Names beside the first; None: all.

        Returns:
            Ways, and by name of a drafter why it is left out.

        Raises:
            InputError: There is no such name, or the first drafter's experiment is missing.
        """
        for given, there, where in (
            (searches, self.searches, "searches"),
            (drafters, self.drafters, "drafters"),
        ):
            for name in given or []:
                check_choice(name, [*there], where)
        first, ways, left_out = next(iter(self.drafters)), [], {}
        for search in searches or self.searches:
            for name, drafter in self.drafters.items():
                if name != first and drafters is not None and name not in drafters:
                    continue
                if drafter.configs and search not in drafter.configs:
                    continue
                config = drafter.configs.get(search)
                files = [drafter.config] + ([] if config is None else [Path(config)])
                missing = [str(path) for path in files if not path.is_file()]
                if missing and name == first:
                    raise InputError(f"{missing[0]}: no such file; run from the recipe's folder")
                if missing:
                    left_out[name] = f"{', '.join(missing)}: not there"
                    continue
                own = {} if config is None else read_mapping(Path(config))
                options = {**self.options, **self.searches[search], **drafter.options, **own}
                ways.append(Way(search, name, drafter, options))
        return ways, left_out


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        InputError: The file is missing or malformed.
    """
    content, where = read_mapping(path), str(path)
    require(content, ("title", "searches", "drafters"), where)
    searches = {
        name: as_mapping(options, f"{where}: searches: {name}")
        for name, options in as_mapping(content["searches"], f"{where}: searches").items()
    }
    drafters = {
        name: _drafter(one, searches, f"{where}: drafters: {name}")
        for name, one in as_mapping(content["drafters"], f"{where}: drafters").items()
    }
    return build_options(Plan, {**content, "searches": searches, "drafters": drafters}, where)


def _drafter(content: Any, searches: Mapping[str, Options], where: str) -> Drafter:
    content = as_mapping(content, where)
    require(content, ("experiment",), where)
    for search in content.get("configs", {}):
        check_choice(search, [*searches], f"{where}: configs")
    if (content.get("curve") is None) != (content.get("hours") is None):
        raise InputError(f"{where}: curve and hours; allowed: both or neither")
    return build_options(Drafter, content, where)
