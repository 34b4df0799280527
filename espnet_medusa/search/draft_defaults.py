"""Draft options that a model's heads bring: what holds where a decode config says nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from espnet_medusa.errors import InputError
from espnet_medusa.options import build_options, check_at_least, check_choice
from espnet_medusa.search.acceptance import THRESHOLD
from espnet_medusa.search.build import BEAM, DRAFT_MINIMA, GREEDY, SearchOptions
from espnet_medusa.search.drafters import HEADS

WHERE = "decoder_conf.draft_conf"
Options = TypeVar("Options", bound=SearchOptions)


@dataclass(frozen=True)
class DraftDefaults:
    """Of one kind of search, as ``SearchOptions`` has them; None: the drafter's own."""

    draft_depth: int | None = None
    draft_width: int | None = None
    draft_vocab_size: int | None = None


def read_draft_conf(
    draft_conf: Mapping[str, Mapping] | None, where: str = WHERE
) -> dict[str, DraftDefaults]:
    """Defaults by search, ``greedy`` and ``beam``.

    Args:
        draft_conf: ``{"greedy": {"draft_depth": 5}}``; None: nothing.
        where: The config key, for messages.

    Raises:
        InputError: Another search or option, or a value that is not allowed.
    """
    if not isinstance(draft_conf or {}, Mapping):
        raise InputError(f"{where}: allowed: options by search, {GREEDY} or {BEAM}")
    found = {}
    for search, values in (draft_conf or {}).items():
        check_choice(search, [GREEDY, BEAM], where)
        if not isinstance(values, Mapping):
            raise InputError(f"{where}.{search}: allowed: names of options with values")
        found[search] = build_options(DraftDefaults, values, f"{where}.{search}")
        for name, least in DRAFT_MINIMA:
            value = getattr(found[search], name, None)
            if value is not None:
                check_at_least(value, least, f"{where}.{search}.{name}")
    return found


def with_draft_defaults(options: Options, draft_conf: Mapping[str, Mapping] | None) -> Options:
    """Decode options with the model's own draft options where they say nothing.

    They are of heads whose drafts are verified: where another drafts, or nothing verifies, or a
    tree is given, options stay as they are.

    Args:
        options: As given.
        draft_conf: As ``read_draft_conf``'s.

    Raises:
        InputError: As there.
    """
    defaults = read_draft_conf(draft_conf).get(options.search)
    by_heads = options.drafter in (None, HEADS) and options.acceptance != THRESHOLD
    if defaults is None or not by_heads or options.medusa_choices:
        return options
    own = {
        entry.name: getattr(defaults, entry.name)
        for entry in fields(defaults)
        if getattr(options, entry.name) is None
    }
    return replace(options, **own)
