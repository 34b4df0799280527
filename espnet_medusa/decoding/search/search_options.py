"""Decode options of the searches: values, defaults, help texts and checks."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import (
    build_options,
    check_above,
    check_at_least,
    check_choice,
    option,
)

BEAM, GREEDY = "beam", "greedy"
EXACT, TYPICAL, TOP_M, THRESHOLD = "exact", "typical", "top_m", "threshold"
RULES = (EXACT, TYPICAL, TOP_M, THRESHOLD)
HEADS, CTC, MODEL, TEXT = "heads", "ctc", "model", "text"
CTC_HEADS, CTC_MODEL = f"{CTC}+{HEADS}", f"{CTC}+{MODEL}"
TEXT_FIRST = f"{TEXT}+"  # a text drafts first, where it goes on
WITH_TEXT = (TEXT, *(TEXT_FIRST + name for name in (HEADS, CTC, MODEL)))
DRAFTERS = (HEADS, CTC, MODEL, CTC_HEADS, CTC_MODEL, *WITH_TEXT)
AUTO, FIXED, ACCEPTANCE = "auto", "fixed", "acceptance"
LOOKAHEADS = (AUTO, FIXED, ACCEPTANCE)
CTC_THRESHOLDS = ("ctc_entropy_threshold", "ctc_likelihood_threshold")
MINIMA = {
    "draft_depth": 0, "draft_width": 1, "draft_budget": 1, "draft_vocab_size": 2, "top_m": 1,
    "ctc_window_margin": 0,
}  # fmt: skip
# Groups of options in the help of commands.
SEARCH, DRAFTS, PRECISION = "Search", "Drafts", "Precision"
ACCEPTANCE_OF_DRAFTS = "Acceptance of drafts"
MAX_PATIENCE = 1000.0
DRAFT_CONF = "decoder_conf.draft_conf"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchOptions:
    """Decode options of the searches, in addition to ESPnet's own."""

    search: str = option(
        BEAM,
        "beam: exact beam search (with acceptance: threshold, drafts are not verified); "
        "greedy: greedy search with an acceptance rule",
        group=SEARCH,
    )
    drafter: str | None = option(
        None,
        "heads, ctc (the model's CTC branch), model (draft_model), ctc+heads, ctc+model; text (a "
        "given draft text), text+heads, text+ctc, text+model; none: heads if the model has any, "
        "else the draft model, in greedy search after a draft text if there is one",
        group=DRAFTS,
    )
    ctc_draft_share: float = option(
        0.3, "weight of CTC in ctc+heads or ctc+model, 0 to 1", group=DRAFTS
    )
    lookahead: str | None = option(
        None,
        "auto: the depth, or none, with the most expected tokens per measured second; fixed: "
        "always draft_depth; acceptance: deeper while drafts are accepted; none: fixed if "
        "draft_depth or medusa_choices is given or acceptance is not exact, else auto",
        group=DRAFTS,
    )
    draft_depth: int | None = option(
        None,
        "tokens drafted per call (maximum with a lookahead); none: draft_conf or one per head, "
        "draft model: 5, CTC: 40 (beam: 15), lookahead acceptance: 15+ if heads allow it; a text "
        "that drafts before another drafter: at least as for CTC; 0: without drafts",
        group=DRAFTS,
    )
    draft_width: int | None = option(
        None,
        "hypotheses drafted in parallel; none: draft_conf, or greedy: 1, beam: beam_size",
        group=DRAFTS,
    )
    draft_budget: int | None = option(
        None,
        "maximum tokens per utterance and call; none: no limit (60 with CTC in beam search)",
        group=DRAFTS,
    )
    draft_min_probability: float | None = option(
        None,
        "greedy: end a draft before the product of its tokens' probabilities (the drafter's) falls "
        "below this; none: draft_conf, or 0 if draft_depth is given",
        group=DRAFTS,
    )
    draft_vocab_size: int | None = option(
        None,
        "number of most frequent training tokens to draft; none: draft_conf or all",
        group=DRAFTS,
    )
    medusa_choices: Sequence[int] | None = option(
        None,
        "fixed tree: 1 for the root, then children per node by head (1 3 2 1); greedy only",
        group=DRAFTS,
    )
    decoder_precision: str | None = option(
        None,
        "float32, bfloat16, float16 (GPU) or int8 (CPU); none: the model's own",
        group=PRECISION,
    )
    draft_precision: str | None = option(
        None,
        "int8: quantize only heads, verified text stays exact; draft models: any precision; "
        "none: the decoder's, or int8 for verified attending heads with our CPU kernels",
        group=DRAFTS,
    )
    acceptance: str = option(
        EXACT,
        "exact: text as without drafts; typical: also accept probable tokens; top_m: accept "
        "the base head's M best tokens; threshold: accept drafts with a high probability, "
        "unverified",
        group=ACCEPTANCE_OF_DRAFTS,
    )
    typical_epsilon: float = option(
        0.09, "typical: tokens of a higher probability are accepted", group=ACCEPTANCE_OF_DRAFTS
    )
    typical_alpha: float = option(
        0.3,
        "typical: accept tokens above this times exp(-entropy), too",
        group=ACCEPTANCE_OF_DRAFTS,
    )
    top_m: int = option(
        5,
        "top_m: number of the base head's best tokens that are accepted",
        group=ACCEPTANCE_OF_DRAFTS,
    )
    threshold: float = option(
        0.8, "threshold: minimum probability of an unverified draft", group=ACCEPTANCE_OF_DRAFTS
    )
    ctc_entropy_threshold: float | None = option(
        None,
        "in nats: accept the CTC text without a decoder call if the entropy of every frame is "
        "lower; none: never",
        group=ACCEPTANCE_OF_DRAFTS,
    )
    ctc_likelihood_threshold: float | None = option(
        None,
        "verify the CTC text in one decoder call: accept its tokens up to the first one with a "
        "lower decoder probability; none: no such call",
        group=ACCEPTANCE_OF_DRAFTS,
    )
    patience: float | None = option(
        None,
        "stop after beam_size * patience ended hypotheses, as openai-whisper; none: as ESPnet",
        group=SEARCH,
    )
    length_penalty: float | None = option(
        None,
        "0 to 1: openai-whisper's length penalty (patience is then 1 by default); none: rank by "
        "mean log-probability if patience is set, else as ESPnet",
        group=SEARCH,
    )
    ctc_window_margin: int | None = option(
        None,
        "CTC prefix scores use encoder frames up to this far from those that the beam has reached; "
        "0: all frames; none: as the installed ESPnet (asr_inference: 202511: 0, 202611: 100)",
        group=SEARCH,
    )
    suppress_tokens: Sequence[int] | None = option(
        None,
        "token ids that are never decoded; none: the checkpoint's list, else Whisper's",
        group=SEARCH,
    )
    begin_suppress_tokens: Sequence[int] | None = option(
        None, "token ids that are never decoded first; none: as for suppress_tokens", group=SEARCH
    )
    forced_prefix: Sequence[int] | None = option(
        None, "token ids that start every hypothesis", group=SEARCH
    )
    exponential_decay_length_penalty: Sequence[float] | None = option(
        None,
        "start and factor: n tokens after start, raise the end symbol's score s by "
        "|s| * (factor**n - 1)",
        group=SEARCH,
    )
    trace: bool = option(
        False,
        "record what each decoder call evaluated, in the results (docs/see_a_decoding.md)",
        group=SEARCH,
    )

    @property
    def chosen_lookahead(self) -> str:
        """The lookahead, by default ``auto`` where texts do not depend on an unset depth."""
        if self.lookahead is not None:
            return self.lookahead
        given = self.draft_depth is not None or self.medusa_choices
        return FIXED if given or self.acceptance != EXACT else AUTO

    @property
    def after_text(self) -> str | None:
        """The drafter without a text, or after it; ``text``: none."""
        return None if self.drafter is None else self.drafter.removeprefix(TEXT_FIRST)

    @property
    def drafts_text(self) -> bool:
        """Whether a given text drafts; in beam search it saves calls, but usually no time."""
        by_default = self.drafter is None and self.search == GREEDY
        return (by_default or self.drafter in WITH_TEXT) and self.draft_depth != 0

    @property
    def ctc_thresholds(self) -> dict[str, float]:
        """The CTC thresholds that are set, by option name."""
        return {n: value for n in CTC_THRESHOLDS if (value := getattr(self, n)) is not None}

    @property
    def is_patient(self) -> bool:
        """Whether beam search ends and ranks like openai-whisper."""
        return self.patience is not None or self.length_penalty is not None


def check_options(options: SearchOptions, beam_size: int) -> None:
    """Raise InputError for an option value that is invalid for every model."""
    check_choice(options.search, [BEAM, GREEDY], "search")
    check_at_least(beam_size, 1, "beam_size")
    _check_minima(options, "")
    _check_min_probability(options, options.search, "")
    if options.drafter is not None:
        check_choice(options.drafter, DRAFTERS, "drafter")
    if options.lookahead is not None:
        check_choice(options.lookahead, LOOKAHEADS, "lookahead")
    check_above(options.typical_epsilon, 0, "typical_epsilon", at_most=1)
    check_above(options.typical_alpha, 0, "typical_alpha")
    check_above(options.threshold, 0, "threshold", at_most=1)
    check_choice(options.acceptance, RULES, "acceptance")
    if not 0 <= options.ctc_draft_share <= 1:
        raise _refusal(options, "ctc_draft_share", ": 0 to 1")
    if options.patience is not None:
        check_above(options.patience, 0, "patience", MAX_PATIENCE)
    _check_acceptance(options)
    _check_ctc_first(options)
    _check_patience(options, beam_size)
    _check_choices(options)
    for name, value in {"acceptance": THRESHOLD, "medusa_choices": options.medusa_choices}.items():
        if options.drafter in WITH_TEXT and value and getattr(options, name) == value:
            raise _refusal(options, name, f" with drafter: {options.drafter}: omit it")


def _refusal(options: SearchOptions, name: str, allowed: str) -> InputError:
    return InputError(f"{name}: {getattr(options, name)}; allowed{allowed}")


def _check_minima(options: object, prefix: str) -> None:
    for name, minimum in MINIMA.items():
        value = getattr(options, name, None)
        if value is not None:
            check_at_least(value, minimum, prefix + name)


def _check_min_probability(options: object, search: str, prefix: str) -> None:
    least = options.draft_min_probability or 0
    if not 0 <= least < 1 or least > 0 and search != GREEDY:
        allowed = "from 0 to below 1, with search: greedy"
        raise InputError(f"{prefix}draft_min_probability: {least}; allowed: {allowed}")


def _check_acceptance(options: SearchOptions) -> None:
    beam, unverified = options.search == BEAM, options.acceptance == THRESHOLD
    if beam and options.acceptance not in (EXACT, THRESHOLD):
        allowed = " with search: beam: exact, threshold, or set search: greedy"
        raise _refusal(options, "acceptance", allowed)
    if unverified and options.draft_width not in (None, 1):
        raise _refusal(options, "draft_width", " with acceptance: threshold: 1")
    if unverified and beam and options.draft_budget is not None:
        allowed = (
            " with search: beam and acceptance: threshold: none, as drafts are part of the "
            "hypotheses; set draft_depth or beam_size"
        )
        raise _refusal(options, "draft_budget", allowed)
    if options.acceptance != EXACT and options.lookahead not in (None, FIXED):
        allowed = (
            f" with acceptance: {options.acceptance}: fixed, as the text depends on the depth of "
            "drafts; or set acceptance: exact"
        )
        raise _refusal(options, "lookahead", allowed)


def _check_ctc_first(options: SearchOptions) -> None:
    for name, value in options.ctc_thresholds.items():
        if not value >= 0:  # also true for NaN
            raise _refusal(options, name, ": 0 or more, or omit it")
        if options.search != GREEDY:
            raise _refusal(options, name, " with search: greedy, as CTC has a single hypothesis")
        if options.acceptance != EXACT:
            raise _refusal(options, name, f" with acceptance: exact, not {options.acceptance}")


def _check_patience(options: SearchOptions, beam_size: int) -> None:
    if options.patience is not None and round(beam_size * options.patience) < 1:
        allowed = f" with beam_size {beam_size}: more, so that at least one hypothesis ends"
        raise _refusal(options, "patience", allowed)
    if options.length_penalty is not None and not 0 <= options.length_penalty <= 1:
        raise _refusal(options, "length_penalty", ": 0 to 1")
    other_search = options.search == GREEDY or options.acceptance == THRESHOLD
    for name in ("patience", "length_penalty"):
        if getattr(options, name) is not None and other_search:
            raise _refusal(options, name, " with search: beam and acceptance: exact")


def _check_choices(options: SearchOptions) -> None:
    choices, name = options.medusa_choices, "medusa_choices"
    if not choices:
        return
    if options.search != GREEDY:
        raise _refusal(options, name, " with search: greedy; use draft_width here")
    if options.acceptance == THRESHOLD:
        raise _refusal(options, name, " without acceptance: threshold")
    if options.draft_width is not None or options.draft_depth is not None:
        raise _refusal(options, name, " without draft_width and draft_depth")
    if choices[0] != 1 or any(type(choice) is not int or choice < 1 for choice in choices):
        allowed = (
            ": 1 for the root, then the number of children of each node of head 1, head 2, ..., "
            "each 1 or more"
        )
        raise _refusal(options, name, allowed)


@dataclass(frozen=True)
class LengthLimits:
    """ESPnet's length options, a function that may end a search early, and whether to trace it."""

    # Maximum number of tokens per encoder frame. Negative: its absolute value is the maximum
    # number of tokens. 0: as many tokens as frames, with end detection.
    maxlenratio: float = 0.0
    # Minimum number of tokens per encoder frame. Negative: its absolute value is the number.
    minlenratio: float = 0.0
    # Greedy and openai-whisper's beam search may end if it returns True for the best tokens.
    give_up: Callable[[list[int]], bool] | None = None
    traced: bool = False  # whether to record the decoder calls

    def most(self, frames: int) -> int:
        if self.maxlenratio == 0:
            return frames
        if self.maxlenratio < 0:
            return -int(self.maxlenratio)
        return max(1, int(self.maxlenratio * frames))

    def least(self, frames: int) -> int:
        return -int(self.minlenratio) if self.minlenratio < 0 else int(self.minlenratio * frames)


@dataclass(frozen=True)
class DraftDefaults:
    """A model's defaults of draft options, for one kind of search."""

    draft_depth: int | None = None
    draft_width: int | None = None
    draft_min_probability: float | None = None
    draft_vocab_size: int | None = None
    languages: list[str] | None = None  # codes; other languages decode without drafts by default


def read_draft_conf(
    draft_conf: Mapping[str, Mapping] | None, where: str = DRAFT_CONF
) -> dict[str, DraftDefaults]:
    """Read a model's draft defaults by search, such as ``{"greedy": {"draft_depth": 5}}``.

    Raise InputError for an unknown search or option, or for a value that is not allowed.
    """
    if not isinstance(draft_conf or {}, Mapping):
        raise InputError(f"{where}: allowed: options by search, {GREEDY} or {BEAM}")
    defaults = {}
    for search, values in (draft_conf or {}).items():
        check_choice(search, [GREEDY, BEAM], where)
        if not isinstance(values, Mapping):
            raise InputError(f"{where}.{search}: allowed: names of options with values")
        defaults[search] = build_options(DraftDefaults, values, f"{where}.{search}")
        _check_minima(defaults[search], f"{where}.{search}.")
        _check_min_probability(defaults[search], search, f"{where}.{search}.")
    return defaults


Options = TypeVar("Options", bound=SearchOptions)


def with_draft_defaults(
    options: Options, draft_conf: Mapping[str, Mapping] | None, language: str | None = None
) -> Options:
    """Set unset options to the model's draft defaults; errors as ``read_draft_conf``.

    The defaults are for verified drafts of heads, also after a text. With another drafter, the
    threshold rule or a fixed tree, the options are returned unchanged. ``language``: the code of
    all utterances, or None; heads that are not trained on it do not draft.
    """
    defaults = read_draft_conf(draft_conf).get(options.search)
    by_heads = options.after_text in (None, HEADS) and options.acceptance != THRESHOLD
    if defaults is None or not by_heads or options.medusa_choices:
        return options
    known = defaults.languages
    if options.draft_depth is None and known and language not in (None, *known):
        logger.info(f"no heads draft: they are trained on {', '.join(known)}, not {language}")
        return replace(options, drafter=TEXT)
    if options.draft_depth is None and defaults.draft_depth == 0 and options.drafts_text:
        return replace(options, drafter=TEXT)
    names = ["draft_depth", "draft_width", "draft_vocab_size"]
    if options.draft_depth is None:  # a given depth is drafted whatever its probability
        names.append("draft_min_probability")
    unset = {name: getattr(defaults, name) for name in names if getattr(options, name) is None}
    lookahead = options.chosen_lookahead
    if lookahead == AUTO and options.search == BEAM and unset.get("draft_depth") == 0:
        unset |= {"draft_depth": None, "drafter": None}  # it begins without drafts
    return replace(options, lookahead=lookahead, **unset)
