"""The plan of a table's figure: which of the table's systems it draws, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espnet_medusa.errors import InputError
from espnet_medusa.options import build_options, check_at_least, check_choice
from espnet_medusa.papers.yaml_file import as_mapping, require


@dataclass(frozen=True)
class SpeedupByLength:
    """Speedup against length, a line for each system.

    Attributes:
        title: As shown.
        systems: Keys of the table's systems to draw.
        bin_tokens: Tokens a bin spans.
    """

    title: str
    systems: tuple[str, ...]
    bin_tokens: int = 10


@dataclass(frozen=True)
class WerAgainstEta:
    """WER against decoder calls per word, a line for each variant of each group.

    Attributes:
        title: As shown.
        groups: Group (one color) to variant (one marker) to label of a point to its system.
        points: What the points' labels say.
    """

    title: str
    groups: Mapping[str, Mapping[str, Mapping[str, str]]]
    points: str


@dataclass(frozen=True)
class CallsPerWord:
    """Decoder calls per word by test set, a bar for each system.

    Attributes:
        title: As shown.
        groups: Group (one color) to variant (one hatch) to its system.
    """

    title: str
    groups: Mapping[str, Mapping[str, str]]


FigurePlan = SpeedupByLength | WerAgainstEta | CallsPerWord
KINDS = {
    "speedup_by_length": SpeedupByLength,
    "wer_against_eta": WerAgainstEta,
    "calls_per_word": CallsPerWord,
}


def read_figure(content: Any, systems: Sequence[str], where: str) -> FigurePlan:
    """The figure as the plan's file gives it.

    Args:
        content: ``kind`` (speedup_by_length where it is left out), and the fields of its class.
        systems: Keys of the table's systems.
        where: Its place, for messages.

    Raises:
        InputError: It is malformed or names what is not there.
    """
    content = as_mapping(content, where)
    kind = content.pop("kind", "speedup_by_length")
    check_choice(kind, list(KINDS), f"{where}: kind")
    if kind == "speedup_by_length":
        return _speedup_by_length(content, systems, where)
    require(content, ("title", "groups"), where)
    depth = 2
    if kind == "wer_against_eta":
        require(content, ("points",), where)
        depth = 3
    content["groups"] = _nested(content["groups"], depth, systems, f"{where}: groups")
    return build_options(KINDS[kind], content, where)


def _speedup_by_length(
    content: dict[str, Any], systems: Sequence[str], where: str
) -> SpeedupByLength:
    require(content, ("title", "systems"), where)
    if not isinstance(content["systems"], list):
        raise InputError(f"{where}: systems: {content['systems']!r}; a list of keys is needed")
    for key in content["systems"]:
        check_choice(key, systems, f"{where}: systems")
    figure = build_options(
        SpeedupByLength, {**content, "systems": tuple(content["systems"])}, where
    )
    if isinstance(figure.bin_tokens, bool) or not isinstance(figure.bin_tokens, int):
        raise InputError(f"{where}: bin_tokens: {figure.bin_tokens!r}; a whole number is needed")
    check_at_least(figure.bin_tokens, 1, f"{where}: bin_tokens")
    return figure


def _nested(content: Any, depth: int, systems: Sequence[str], where: str) -> Any:
    """Mappings in mappings, ``depth`` deep, with keys of systems at their ends."""
    if not depth:
        check_choice(content, systems, where)
        return content
    return {
        key: _nested(value, depth - 1, systems, f"{where}: {key}")
        for key, value in as_mapping(content, where).items()
    }
