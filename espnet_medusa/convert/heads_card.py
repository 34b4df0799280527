"""The card of heads without their Whisper: what they are, were trained on, and bring.

A ``README.md`` as models on the hub have it: YAML between two lines of ``---``, then text.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from transformers import WhisperConfig

from espnet_medusa.errors import InputError
from espnet_medusa.files.yaml_text import load_yaml
from espnet_medusa.model.heads import HEAD_TYPES, HeadOptions
from espnet_medusa.options import build_options, check_at_least, check_choice
from espnet_medusa.search.options import read_draft_conf

CARD = "README.md"
FENCE = "---\n"
MAX_CARD = 64 * 1024  # bytes
# Nothing of heads is larger; a card may be a stranger's, and the network is built by it.
MAX_SIZE = 100_000
MAX_LAYERS = 1000  # of all heads together
SIZES = ("d_model", "vocab_size", "encoder_layers", "decoder_layers")
DO = "write the folder with python -m espnet_medusa.stages pack_heads, or fetch it again"


@dataclass(frozen=True)
class Acceptance:
    """What greedy search with these heads took: fields of ``statistics.json``.

    Attributes:
        data: Which utterances.
        utterances: How many.
        tokens_per_call: Mean.
        per_head: Share of each step's drafts that was accepted.
    """

    data: str
    utterances: int
    tokens_per_call: float
    per_head: list[float]

    def __str__(self) -> str:
        shares = " ".join(f"{100 * share:.0f}" for share in self.per_head)
        return (
            f"{self.tokens_per_call:.2f} tokens a call on {self.data} ({self.utterances} "
            f"utterances; accepted of each head: {shares} %)"
        )


@dataclass(frozen=True)
class HeadsCard:
    """A card's fields.

    Attributes:
        base_model: Hub name of the Whisper.
        license: Of the heads, as the hub names it (``mit``).
        training_data: Corpus to its licence.
        commands: That trained the heads and measured them.
        whisper: ``SIZES`` of the Whisper.
        fingerprint: ``whisper.fingerprint`` of its weights.
        heads, heads_conf: ``decoder_conf``'s of the same names.
        acceptance: Measured.
        draft_conf: Draft options by search, where a decode config says nothing.
    """

    base_model: str
    license: str
    training_data: dict[str, str]
    commands: list[str]
    whisper: dict[str, int]
    fingerprint: str
    heads: str
    heads_conf: dict[str, Any]
    acceptance: Acceptance
    draft_conf: dict[str, dict] = field(default_factory=dict)

    @property
    def head_options(self) -> HeadOptions:
        """``heads_conf`` as heads are built with it."""
        return HeadOptions(**self.heads_conf)

    def __str__(self) -> str:
        return f"{self.heads} heads of {self.base_model}: {self.acceptance}"


def sizes_of(config: WhisperConfig) -> dict[str, int]:
    """``HeadsCard.whisper`` of a Whisper."""
    return {name: getattr(config, name) for name in SIZES}


def read_card(folder: Path) -> HeadsCard:
    """Read and check a folder's card, which may be a stranger's.

    Raises:
        InputError: Names the field, what it is and what is allowed.
    """
    path = folder / CARD
    return check_card(read_front_matter(path)[0], path)


def check_card(said: Mapping[str, Any], path: Path) -> HeadsCard:
    """Check a card's fields; those that are not of a ``HeadsCard`` are ignored.

    Args:
        said: The fields.
        path: Where they stand, for messages.

    Raises:
        InputError: As ``read_card``.
    """
    names = [entry.name for entry in fields(HeadsCard)]
    missing = [name for name in names if name not in said and name != "draft_conf"]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}; {DO}")
    kept = {name: said[name] for name in names if said.get(name) is not None}
    kept["acceptance"] = _acceptance(said["acceptance"], path)
    texts = ("base_model", "license", "fingerprint", "heads")
    for name, fits in (
        *((name, _is_text) for name in texts),
        ("training_data", _is_texts),
        ("commands", lambda value: isinstance(value, list) and all(map(_is_text, value))),
        ("whisper", lambda value: isinstance(value, dict) and {*SIZES} == {*value}),
        ("heads_conf", lambda value: isinstance(value, dict)),
    ):
        if not fits(kept.get(name)):
            raise _not_as_cards(f"{path}: {name}", said[name])
    _check_heads(kept["heads"], kept["heads_conf"], path)
    read_draft_conf(kept.get("draft_conf"), f"{path}: draft_conf")
    return HeadsCard(**kept)


def read_front_matter(path: Path) -> tuple[dict[str, Any], str]:
    """A card's fields, and the text behind them.

    Raises:
        InputError: There is no such file, it is too large, or it has no fields.
    """
    try:
        with open(path, "rb") as stream:
            text = stream.read(MAX_CARD + 1).decode()
        if len(text) > MAX_CARD:
            raise InputError(f"{path}: allowed: at most {MAX_CARD} bytes; {DO}")
        opening, front, body = (*text.split(FENCE, 2), "", "")[:3]
        if opening or not front:
            raise InputError(f"{path}: no fields between two lines of ---; {DO}")
        said = load_yaml(front)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be read ({reason}); {DO}") from error
    if not isinstance(said, dict):
        raise InputError(f"{path}: no fields between two lines of ---; {DO}")
    return said, body


def write_card(folder: Path, said: Mapping[str, Any], body: str) -> None:
    """Write a card: fields in the order given, then text."""
    front = yaml.safe_dump(dict(said), sort_keys=False, allow_unicode=True, width=100)
    (folder / CARD).write_text(f"{FENCE}{front}{FENCE}{body}", encoding="utf-8")


def _acceptance(said: object, path: Path) -> Acceptance:
    where = f"{path}: acceptance"
    if not isinstance(said, dict):
        raise _not_as_cards(where, said)
    missing = [entry.name for entry in fields(Acceptance) if entry.name not in said]
    if missing:
        raise InputError(f"{where}: lacks {', '.join(missing)}; {DO}")
    found = build_options(Acceptance, said, where)
    if not _is_text(found.data):
        raise _not_as_cards(where, said)
    return found


def _check_heads(kind: str, conf: Mapping[str, Any], path: Path) -> None:
    check_choice(kind, [*HEAD_TYPES], f"{path}: heads")
    options = build_options(HeadOptions, conf, f"{path}: heads_conf")
    for name, value in conf.items():
        if isinstance(value, int) and value > MAX_SIZE:
            raise InputError(f"{path}: heads_conf.{name}: {value}; allowed: at most {MAX_SIZE}")
    for name in ("num_heads", "num_layers"):
        check_at_least(getattr(options, name), 1, f"{path}: heads_conf.{name}")
    if options.num_heads * options.num_layers > MAX_LAYERS:
        raise InputError(
            f"{path}: heads_conf: {options.num_heads} heads of {options.num_layers} layers; "
            f"allowed: at most {MAX_LAYERS} layers together"
        )


def _not_as_cards(where: str, value: object) -> InputError:
    return InputError(f"{where}: {reprlib.repr(value)}: not as cards have it; {DO}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.strip() != "" and value.isprintable()


def _is_texts(value: object) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(_is_text(text) for text in (*value, *value.values()))
    )
