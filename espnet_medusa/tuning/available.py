"""What a model has to draft with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from espnet_medusa.draft.mixed import MixedProposer
from espnet_medusa.errors import InputError
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.inference.draft_material import draft_sources
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.search.build import draft_shape
from espnet_medusa.search.drafters import build_proposer, default_budget
from espnet_medusa.search.options import CTC, CTC_HEADS, CTC_MODEL, GREEDY, HEADS, MODEL
from espnet_medusa.tree.proposer import Proposer
from espnet_medusa.tuning.setting import DraftSetting

OWN = (HEADS, CTC, CTC_HEADS)  # what a model has without another one
MODELS = (MODEL, CTC_MODEL)
KINDS = (*OWN, *MODELS)
SHARES = (0.3, 0.6)  # of CTC where heads draft, too
VOCABULARIES = (4096, 16384)  # tokens that heads may draft, where there are several times as many


class DraftModelFiles(NamedTuple):
    """The decode options ``draft_model`` and ``draft_model_file``."""

    name: str
    weights: str | None = None


@dataclass(frozen=True)
class Drafter:
    """One of them.

    Attributes:
        name: As tables call it.
        kind: As the decode option ``drafter`` calls it.
        proposers: By the option ``ctc_draft_share``; under None where nothing is mixed.
        budget: The decode option's default.
        files: Of the draft model.
        vocabulary: The decode option ``draft_vocab_size``.
    """

    name: str
    kind: str
    proposers: dict[float | None, Proposer]
    budget: int | None = None
    files: DraftModelFiles | None = None
    vocabulary: int | None = None

    def config(self, setting: DraftSetting) -> dict[str, Any]:
        """Keys of a decode config that drafts like this."""
        keys = {"drafter": self.kind}
        if self.files is not None:
            keys["draft_model"] = self.files.name
            if self.files.weights is not None:
                keys["draft_model_file"] = self.files.weights
        if self.vocabulary is not None:
            keys["draft_vocab_size"] = self.vocabulary
        return keys | setting.options()

    @property
    def max_steps(self) -> int | None:
        """How far it can go; None without limit."""
        return next(iter(self.proposers.values())).max_steps


@dataclass
class Available:
    """All of them.

    Attributes:
        drafters: By name.
        left_out: Why the others are not among them, a line each.
        readers: Who reads what a draft model or CTC drafts from, by the drafter's name.
    """

    drafters: dict[str, Drafter] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    readers: dict[str, Speech2Text] = field(default_factory=dict)

    @property
    def kinds(self) -> list[str]:
        """As the decode option ``drafter`` calls them, each once."""
        return [*dict.fromkeys(drafter.kind for drafter in self.drafters.values())]

    @property
    def window_s(self) -> float | None:
        """The longest audio that all draft models take; None without limit."""
        windows = [reader.window_s for reader in self.readers.values()]
        return min((window for window in windows if window is not None), default=None)


def available(
    speech2text: Speech2Text, kinds: Sequence[str], draft_models: Sequence[DraftModelFiles]
) -> Available:
    """Look what there is.

    Args:
        speech2text: The model; its search drafts nothing.
        kinds: As the decode option ``drafter`` calls them.
        draft_models: To be opened.

    Raises:
        InputError: A draft model cannot be used.
    """
    found = Available()
    for kind in [kind for kind in OWN if kind in kinds]:
        try:
            _add_own(found, speech2text, kind)
        except InputError as error:
            found.left_out.append(str(error))
    with_models = [kind for kind in MODELS if kind in kinds]
    names = _short_names([files.name for files in draft_models])
    for name, files in zip(names, draft_models, strict=True):
        _add_model(found, speech2text, with_models, name, files)
    if with_models and not draft_models:
        found.left_out.append("drafter: model; no draft model is given; see --draft_models")
    return found


def _add_own(found: Available, speech2text: Speech2Text, kind: str) -> None:
    """Heads once for each vocabulary: what a step costs and what it hits depend on it.

    Raises:
        InputError: The model has nothing of the kind, or has not counted its tokens.
    """
    options = speech2text.search_options
    shares = _shares(options) if kind == CTC_HEADS else [None]
    for size in _vocabularies(speech2text, kind):
        reader = copy.copy(speech2text)
        reader.search_options = replace(options, draft_vocab_size=size)
        proposers = {share: _proposer(reader, kind, share) for share in shares}
        name = kind if size == options.draft_vocab_size else f"{kind}, {size} tokens"
        drafter = _drafter(name, kind, proposers, options)
        found.drafters[name] = replace(drafter, vocabulary=size)
        if kind != HEADS:
            found.readers[name] = speech2text


def _vocabularies(speech2text: Speech2Text, kind: str) -> list[int | None]:
    """The option's own first; it stands alone for CTC, whose steps cost nothing."""
    own = speech2text.search_options.draft_vocab_size
    if kind == CTC:
        return [own]
    most = len(speech2text.asr_model.token_list) // 2
    return [*dict.fromkeys((own, *(size for size in VOCABULARIES if size <= most)))]


def _add_model(
    found: Available,
    speech2text: Speech2Text,
    kinds: Sequence[str],
    name: str,
    files: DraftModelFiles,
) -> None:
    """Open a draft model once, for what it drafts alone and with CTC."""
    # Both have all tokens of the draft model.
    options = replace(speech2text.search_options, draft_vocab_size=None)
    reader = copy.copy(speech2text)
    reader.search_options = replace(
        options, drafter=CTC_MODEL, draft_model=files.name, draft_model_file=files.weights
    )
    model = _proposer(reader, MODEL, None)
    proposers = {MODEL: {None: model}}
    if CTC_MODEL in kinds:
        try:
            listener = copy.copy(speech2text)
            listener.search_options = options
            ctc = _proposer(listener, CTC, None)
        except InputError as error:
            found.left_out.append(str(error))
        else:
            proposers[CTC_MODEL] = {
                share: MixedProposer(ctc, model, share) for share in _shares(options)
            }
    for kind in [kind for kind in kinds if kind in proposers]:
        full = f"{kind} {name}"
        found.drafters[full] = _drafter(full, kind, proposers[kind], options, files)
        found.readers[full] = reader


def _shares(options: DecodeOptions) -> list[float]:
    """Of CTC, the option's own first."""
    return [*dict.fromkeys((options.ctc_draft_share, *SHARES))]


def _drafter(
    name: str,
    kind: str,
    proposers: dict[float | None, Proposer],
    options: DecodeOptions,
    files: DraftModelFiles | None = None,
) -> Drafter:
    first = next(iter(proposers.values()))
    budget = default_budget(first, options.search == GREEDY)
    return Drafter(name, kind, proposers, budget, files)


def _proposer(speech2text: Speech2Text, kind: str, share: float | None) -> Proposer:
    """What drafts.

    Raises:
        InputError: The model has nothing of the kind.
    """
    options = replace(speech2text.search_options, drafter=kind, draft_depth=1)
    if share is not None:
        options = replace(options, ctc_draft_share=share)
    model, decoder = speech2text.asr_model, speech2text.search.decoder
    proposer = build_proposer(
        options, decoder, len(model.token_list), model.eos, draft_sources(speech2text)
    )
    draft_shape(options, decoder, proposer, width=1)  # refuses untrained heads
    return proposer


def _short_names(names: Sequence[str]) -> list[str]:
    """Last parts of paths where they differ."""
    short = [Path(name).name if Path(name).exists() else name for name in names]
    return short if len({*short}) == len({*names}) else [*names]
