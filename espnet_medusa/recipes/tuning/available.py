"""The drafters that a model can use, and the settings of their drafts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.draft.mixed import MixedProposer
from espnet_medusa.decoding.search.build import draft_shape
from espnet_medusa.decoding.search.drafters import build_proposer
from espnet_medusa.decoding.search.search_options import (
    CTC,
    CTC_HEADS,
    CTC_MODEL,
    FIXED,
    HEADS,
    MODEL,
    SearchOptions,
)
from espnet_medusa.decoding.tree.proposer import Proposer
from espnet_medusa.recipes.tuning.tuned_model import DraftModelFiles, DraftReader, TunedModel

OWN = (HEADS, CTC, CTC_HEADS)  # need no second model
MODELS = (MODEL, CTC_MODEL)
KINDS = (*OWN, *MODELS)
SHARES = (0.3, 0.6)  # of CTC in a mixture
VOCABULARIES = (4096, 16384)  # of draft heads, if the model's is at least twice as large


@dataclass(frozen=True)
class DraftSetting:
    drafter: str  # name of the drafter
    depth: int  # draft steps; with a lookahead, their maximum; 0: without drafts
    width: int = 1  # drafted hypotheses
    budget: int | None = None  # maximum nodes per utterance and decoder call; None: the default
    lookahead: str = FIXED  # the decode option ``lookahead``
    share: float | None = None  # the decode option ``ctc_draft_share``, if the drafter has it
    min_probability: float | None = None  # the decode option ``draft_min_probability``

    def options(self) -> dict[str, int | float | str | None]:
        """Return the keys of a decode config, without those of the drafter."""
        if self.depth == 0:
            return {"draft_depth": 0}
        return {
            **({} if self.share is None else {"ctc_draft_share": self.share}),
            "lookahead": self.lookahead,
            "draft_depth": self.depth,
            "draft_width": self.width,
            "draft_budget": self.budget,
            "draft_min_probability": self.min_probability,
        }

    @property
    def shape(self) -> str:
        """The shape of the drafts as text, without the drafter."""
        if self.depth == 0:
            return "-"
        parts = [f"depth {self.depth}", f"width {self.width}"]
        if self.lookahead != FIXED:
            parts[0] = f"lookahead {self.lookahead} to {self.depth}"
        if self.min_probability is not None:
            parts.append(f"minimum probability {self.min_probability:g}")
        if self.budget is not None:
            parts.append(f"budget {self.budget}")
        if self.share is not None:
            parts.append(f"share {self.share:g}")
        return ", ".join(parts)

    def __str__(self) -> str:
        return self.drafter if self.depth == 0 else f"{self.drafter}, {self.shape}"


NO_DRAFTS = DraftSetting("baseline", 0)


@dataclass(frozen=True)
class Drafter:
    name: str  # as tables show it
    kind: str  # the decode option ``drafter``
    proposers: dict[float | None, Proposer]  # by ``DraftSetting.share``
    keys: dict[str, Any] = field(default_factory=dict)  # other keys of a decode config
    reader: DraftReader | None = None  # None: the drafter uses the encoder output

    def config(self, setting: DraftSetting) -> dict[str, Any]:
        """Return the keys of a decode config for this drafter and a setting of it."""
        return {"drafter": self.kind, **self.keys, **setting.options()}

    @property
    def first(self) -> Proposer:
        """The proposer with the first share of CTC."""
        return next(iter(self.proposers.values()))


@dataclass
class Available:
    drafters: dict[str, Drafter] = field(default_factory=dict)  # by name
    left_out: list[str] = field(default_factory=list)  # why others cannot be used, a line each

    @property
    def readers(self) -> dict[str, DraftReader]:
        """The readers of drafters' inputs, by the drafter's name."""
        return {name: d.reader for name, d in self.drafters.items() if d.reader is not None}

    @property
    def window_s(self) -> float | None:
        """The longest audio that all draft models take; None without limit."""
        windows = [reader.window_s for reader in self.readers.values()]
        return min((window for window in windows if window is not None), default=None)

    def add_own(self, main: TunedModel, kind: str) -> None:
        """Add CTC, heads or both, once per draft vocabulary; raise InputError if unusable."""
        options, given = main.options, main.options.draft_vocab_size
        sizes = [given]
        if kind != CTC:  # the cost of CTC steps does not depend on the vocabulary
            most = len(main.tokens) // 2
            sizes += [size for size in VOCABULARIES if size <= most and size != given]
        shares = _shares(options) if kind == CTC_HEADS else [None]
        for size in sizes:
            changed = replace(options, draft_vocab_size=size)
            proposers = {share: _proposer(main, changed, kind, share=share) for share in shares}
            name = kind if size == given else f"{kind}, {size} tokens"
            keys = {} if size is None else {"draft_vocab_size": size}
            reader = None if kind == HEADS else main.reader()
            self.drafters[name] = Drafter(name, kind, proposers, keys, reader)

    def add_model(
        self, main: TunedModel, kinds: Sequence[str], name: str, files: DraftModelFiles
    ) -> None:
        """Add a draft model, alone and mixed with CTC; raise InputError if it is unusable."""
        options = replace(main.options, draft_vocab_size=None)
        opener = main.opener(files)
        model = _proposer(main, options, MODEL, opener)
        reader = main.reader(opener)
        proposers = {MODEL: {None: model}}
        if CTC_MODEL in kinds:
            try:
                ctc = _proposer(main, options, CTC)
            except InputError as error:
                self.left_out.append(str(error))
            else:
                mixed = {share: MixedProposer(ctc, model, share) for share in _shares(options)}
                proposers[CTC_MODEL] = mixed
        for kind in [kind for kind in kinds if kind in proposers]:
            full = f"{kind} {name}"
            self.drafters[full] = Drafter(full, kind, proposers[kind], files.keys(), reader)


def available(
    main: TunedModel, kinds: Sequence[str], draft_models: Sequence[DraftModelFiles]
) -> Available:
    """Return the drafters of ``kinds``; raise InputError if a draft model is unusable."""
    drafters = Available()
    for kind in [kind for kind in OWN if kind in kinds]:
        try:
            drafters.add_own(main, kind)
        except InputError as error:
            drafters.left_out.append(str(error))
    with_models = [kind for kind in MODELS if kind in kinds]
    names = [files.name for files in draft_models]
    short = [Path(name).name if Path(name).exists() else name for name in names]
    names = short if len({*short}) == len({*names}) else names
    for name, files in zip(names, draft_models, strict=True):
        drafters.add_model(main, with_models, name, files)
    if with_models and not draft_models:
        drafters.left_out.append("drafter: model; no draft model is given; see --draft_models")
    return drafters


def _shares(options: SearchOptions) -> list[float]:
    return [*dict.fromkeys((options.ctc_draft_share, *SHARES))]


def _proposer(
    main: TunedModel,
    options: SearchOptions,
    kind: str,
    opener: Callable[[], Proposer] | None = None,
    share: float | None = None,
) -> Proposer:
    options = replace(options, drafter=kind, draft_depth=1)
    if share is not None:
        options = replace(options, ctc_draft_share=share)
    decoder, sources = main.search.decoder, main.sources(opener)
    proposer = build_proposer(options, decoder, len(main.tokens), main.eos, sources)
    draft_shape(options, decoder, proposer, width=1)  # InputError: threshold, untrained heads
    return proposer
