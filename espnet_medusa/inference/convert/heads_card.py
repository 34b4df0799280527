"""The card of a folder of heads: type, training data and acceptance.

It is a ``README.md`` in the form of model cards on the hub: YAML between two lines of ``---``, then
text.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from transformers import WhisperConfig

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.yaml_text import load_yaml
from espnet_medusa.data.options import build_options, check_at_least, check_choice
from espnet_medusa.decoding.search.search_options import read_draft_conf
from espnet_medusa.networks.heads import HEAD_TYPES, HeadOptions

CARD = "README.md"
FENCE = "---\n"
MAX_CARD = 64 * 1024  # bytes
# Limits for untrusted cards, which define the network that is built.
MAX_SIZE = 100_000
MAX_LAYERS = 1000  # of all heads together
SIZES = ("d_model", "vocab_size", "encoder_layers", "decoder_layers")
REMEDY = "write the folder with python -m espnet_medusa.bin.stage pack_heads, or download it again"


@dataclass(frozen=True)
class Acceptance:
    """Measured acceptance in greedy search: fields of ``statistics.json``."""

    data: str  # name of the test data
    utterances: int  # number of utterances
    tokens_per_call: float  # mean
    per_head: list[float]  # share of accepted drafts per head

    def __str__(self) -> str:
        shares = " ".join(f"{100 * share:.0f}" for share in self.per_head)
        return (
            f"{self.tokens_per_call:.2f} tokens per call on {self.data} ({self.utterances} "
            f"utterances; accepted per head: {shares} %)"
        )


@dataclass(frozen=True)
class HeadsCard:
    base_model: str  # hub name of the Whisper
    license: str  # of the heads, in the hub's form (``mit``)
    training_data: dict[str, str]  # corpus to its license
    commands: list[str]  # that trained and measured the heads
    whisper: dict[str, int]  # ``SIZES`` of the Whisper
    fingerprint: str  # ``whisper.fingerprint`` of its weights
    heads: str  # ``heads`` of ``decoder_conf``
    heads_conf: dict[str, Any]  # ``heads_conf`` of ``decoder_conf``
    acceptance: Acceptance  # as measured
    draft_conf: dict[str, dict] = field(default_factory=dict)  # recommended options by search
    language: list[str] = field(default_factory=list)  # codes of the training data, if known

    def __str__(self) -> str:
        about = f"{self.heads} heads of {self.base_model}: {self.acceptance}"
        if self.language:
            about += f"; by default, they draft in no language but {', '.join(self.language)}"
        return about


def sizes_of(config: WhisperConfig) -> dict[str, int]:
    return {name: getattr(config, name) for name in SIZES}


def read_card(folder: Path) -> HeadsCard:
    """Read the untrusted card of a folder; raise InputError if a field is missing or invalid."""
    path = folder / CARD
    return check_card(read_front_matter(path)[0], path)


def check_card(content: Mapping[str, Any], path: Path) -> HeadsCard:
    """Return the known fields of the card ``path``; raise InputError if one is invalid."""
    content = {"draft_conf": {}, "language": [], **content}
    names = _check_complete(HeadsCard, content, path)
    values = {name: content[name] for name in names if content.get(name) is not None}
    values["acceptance"] = _acceptance(content["acceptance"], path)
    texts = ("base_model", "license", "fingerprint", "heads")
    for name, fits in (
        *((name, _is_text) for name in texts),
        ("training_data", _is_texts),
        ("commands", _is_text_list),
        ("language", _is_text_list),
        ("whisper", lambda value: isinstance(value, dict) and {*SIZES} == {*value}),
        ("heads_conf", lambda value: isinstance(value, dict)),
    ):
        if not fits(values.get(name)):
            raise _invalid(f"{path}: {name}", content[name])
    _check_heads(values["heads"], values["heads_conf"], path)
    read_draft_conf(values.get("draft_conf"), f"{path}: draft_conf")
    return HeadsCard(**values)


def read_front_matter(path: Path) -> tuple[dict[str, Any], str]:
    """Return a card's fields and the text after them; raise InputError if it has no fields."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_CARD + 1)
        if len(data) > MAX_CARD:
            raise InputError(f"{path}: allowed: at most {MAX_CARD} bytes; {REMEDY}")
        text = data.decode()
        opening, front, body = (*text.split(FENCE, 2), "", "")[:3]
        content = None if opening else load_yaml(front)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be read ({reason}); {REMEDY}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: no fields between two lines of ---; {REMEDY}")
    return content, body


def write_card(folder: Path, content: Mapping[str, Any], body: str) -> None:
    front = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=100)
    (folder / CARD).write_text(f"{FENCE}{front}{FENCE}{body}", encoding="utf-8")


def _check_complete(kind: type, content: Mapping[str, Any], where: Path | str) -> list[str]:
    """Return the fields of a dataclass; raise InputError if ``content`` lacks one."""
    names = [entry.name for entry in fields(kind)]
    missing = [name for name in names if name not in content]
    if missing:
        raise InputError(f"{where}: lacks {', '.join(missing)}; {REMEDY}")
    return names


def _acceptance(content: object, path: Path) -> Acceptance:
    where = f"{path}: acceptance"
    if not isinstance(content, dict):
        raise _invalid(where, content)
    _check_complete(Acceptance, content, where)
    acceptance = build_options(Acceptance, content, where)
    if not _is_text(acceptance.data):
        raise _invalid(where, content)
    return acceptance


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


def _invalid(where: str, value: object) -> InputError:
    return InputError(f"{where}: {reprlib.repr(value)}: invalid in a card; {REMEDY}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.strip() != "" and value.isprintable()


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and value != {} and all(map(_is_text, (*value, *value.values())))
