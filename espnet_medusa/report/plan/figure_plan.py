"""The plan of a table's figure: which of the table's systems it draws, and how."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from espnet_medusa.errors import InputError
from espnet_medusa.options import build_options, check_at_least, check_choice
from espnet_medusa.report.plan.yaml_file import as_mapping, require


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
class WerAgainstLatency(WerAgainstEta):
    """WER against the median milliseconds of an utterance; points without lines."""


@dataclass(frozen=True)
class WerAgainstCalls(WerAgainstEta):
    """WER against decoder calls an utterance."""


@dataclass(frozen=True)
class CallsAndWer:
    """Keys of the system whose decoder calls a point shows, and of that whose WER."""

    calls: str
    wer: str


@dataclass(frozen=True)
class CallsAgainstWer:
    """Decoder calls an utterance against the WER of what drafts, a line for each variant.

    Attributes:
        title: As shown.
        groups: Group (one color) to variant (one marker) to label of a point to its two systems,
            as ``CTC: {greedy: {"1 epoch": {calls: drafted_1, wer: ctc_1}}}``.
        points: What the points' labels say.
        wer_of: Whose WER it is, such as ``the greedy CTC hypothesis``.
    """

    title: str
    groups: Mapping[str, Mapping[str, Mapping[str, CallsAndWer]]]
    points: str
    wer_of: str


@dataclass(frozen=True)
class CallsPerWord:
    """Decoder calls per word by test set, a bar for each system.

    Attributes:
        title: As shown.
        groups: Group (one color) to variant (one hatch) to its system.
    """

    title: str
    groups: Mapping[str, Mapping[str, str]]


ScatterPlan = WerAgainstEta | WerAgainstLatency | WerAgainstCalls | CallsAgainstWer
FigurePlan = SpeedupByLength | CallsPerWord | ScatterPlan
KINDS = {
    "speedup_by_length": SpeedupByLength,
    "wer_against_eta": WerAgainstEta,
    "wer_against_latency": WerAgainstLatency,
    "wer_against_calls": WerAgainstCalls,
    "calls_against_wer": CallsAgainstWer,
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
    names = tuple(field.name for field in fields(KINDS[kind]))
    require(content, names, where)
    # Systems are two deep, or three where points have labels.
    depth = 3 if "points" in names else 2
    read_end = _calls_and_wer if kind == "calls_against_wer" else _system
    content["groups"] = _nested(content["groups"], depth, f"{where}: groups", systems, read_end)
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


def _nested(
    content: Any,
    depth: int,
    where: str,
    systems: Sequence[str],
    read_end: Callable[[Any, Sequence[str], str], Any],
) -> Any:
    """Mappings in mappings, ``depth`` deep; ``read_end`` reads what is at their ends."""
    if not depth:
        return read_end(content, systems, where)
    return {
        key: _nested(value, depth - 1, f"{where}: {key}", systems, read_end)
        for key, value in as_mapping(content, where).items()
    }


def _system(content: Any, systems: Sequence[str], where: str) -> str:
    check_choice(content, systems, where)
    return content


def _calls_and_wer(content: Any, systems: Sequence[str], where: str) -> CallsAndWer:
    content = as_mapping(content, where)
    require(content, ("calls", "wer"), where)
    pair = build_options(CallsAndWer, content, where)
    for name, key in content.items():
        check_choice(key, systems, f"{where}: {name}")
    return pair
