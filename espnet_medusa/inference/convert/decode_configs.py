"""Decode configs of a converted model."""

from collections.abc import Mapping

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.search_options import GREEDY, SearchOptions, check_options
from espnet_medusa.inference.convert.checkpoint import CONFIG, GENERATION, Checkpoint
from espnet_medusa.inference.convert.read_whisper import CHOICES
from espnet_medusa.inference.convert.special_ids import suppressed_ids
from espnet_medusa.networks.heads import NO_HEADS

PENALTY = "exponential_decay_length_penalty"


def decode_configs(checkpoint: Checkpoint) -> dict[str, dict]:
    """Return decode options by name: ``baseline``; with heads also ``exact`` and ``typical``."""
    generation = checkpoint.records.get(GENERATION, {})
    common = {"search": "greedy", **_constraints(checkpoint, generation)}
    configs = {"baseline": common | {"draft_depth": 0}}
    if checkpoint.architecture.heads == NO_HEADS:
        return configs
    choices = checkpoint.records.get(CONFIG, {}).get(CHOICES)
    drafts = {} if choices is None else {CHOICES: choices}
    options = SearchOptions(acceptance="typical")
    typical = {
        "acceptance": "typical",
        "typical_epsilon": _number(generation, "posterior_threshold", options.typical_epsilon),
        "typical_alpha": _number(generation, "posterior_alpha", options.typical_alpha),
    }
    check_options(SearchOptions(search=GREEDY, **typical), beam_size=1)
    configs["exact"] = common | drafts | {"acceptance": "exact"}
    configs["typical"] = common | drafts | typical
    return configs


def _constraints(checkpoint: Checkpoint, generation: Mapping) -> dict:
    constraints = {}
    lists = suppressed_ids(checkpoint.records, checkpoint.text)
    constraints |= {name: ids for name, ids in lists.items() if ids}
    penalty = generation.get(PENALTY)
    if penalty is not None:
        if not isinstance(penalty, list):
            raise InputError(f"{GENERATION}: {PENALTY}: {penalty}; allowed: [start, factor]")
        constraints[PENALTY] = penalty
    switch = generation.get("no_timestamps_token_id")
    # The prompt of Whisper's tokenizer already contains this token.
    if checkpoint.text.whisper is None and type(switch) is int:
        constraints["forced_prefix"] = [switch]
    return constraints


def _number(fields: Mapping, name: str, default: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{GENERATION}: {name}: {value!r}; allowed: a number above 0")
    return value
