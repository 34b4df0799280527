"""Decode options, checked against the model, and the searches that they describe."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_above, check_at_least, check_choice
from espnet_medusa.search.acceptance import EXACT, THRESHOLD, AcceptanceOptions, build_rule
from espnet_medusa.search.ahead.shape import DraftShape
from espnet_medusa.search.beam import BeamSearch
from espnet_medusa.search.constraints import ConstraintOptions, build_constraints
from espnet_medusa.search.ctc_first import CTCFirst, CTCFirstOptions, CTCFirstSearch
from espnet_medusa.search.drafters import (
    FIXED,
    LOOKAHEAD_DEPTH,
    NO_SOURCES,
    DraftSources,
    build_ctc,
    build_lookahead,
    build_proposer,
    check_drafter,
    default_budget,
    default_depth,
)
from espnet_medusa.search.greedy import GreedySearch
from espnet_medusa.search.patient_beam import PatienceOptions, PatientBeamSearch
from espnet_medusa.search.threshold_beam import ThresholdBeamSearch
from espnet_medusa.tree.proposer import Proposer
from espnet_medusa.tree.tree_decoder import TreeDecoder

BEAM, GREEDY = "beam", "greedy"
WEIGHT_OPTIONS = {  # ESPnet's, by scorer
    "ctc": "ctc_weight",
    "lm": "lm_weight",
    "ngram": "ngram_weight",
    "length_bonus": "penalty",
}
MAX_PATIENCE = 1000.0
DRAFT_MINIMA = (
    ("draft_depth", 0),
    ("draft_width", 1),
    ("draft_budget", 1),
    ("draft_vocab_size", 2),
)


@dataclass(frozen=True)
class SearchOptions(ConstraintOptions, AcceptanceOptions, CTCFirstOptions, PatienceOptions):
    """Decode options beside ESPnet's own."""

    # beam: exact beam search, with acceptance: threshold one of drafts that nothing verifies;
    # greedy: an acceptance rule decides
    search: str = BEAM
    drafter: str | None = None  # DRAFTERS; None: heads, else a draft model
    ctc_draft_share: float = 0.3  # of CTC in ctc+heads, ctc+model
    lookahead: str = FIXED  # fixed: always draft_depth; acceptance, cost: up to it
    draft_depth: int | None = None  # steps drafted ahead; None: the drafter's own, 0: no drafts
    draft_width: int | None = None  # hypotheses drafted; None: 1 for greedy, beam_size for beam
    draft_budget: int | None = None  # most nodes of an utterance in a decoder call
    draft_vocab_size: int | None = None  # drafts are among so many most frequent training tokens
    medusa_choices: Sequence[int] | None = None  # fixed tree, the root's 1 first; greedy only
    decoder_precision: str | None = None  # float32, bfloat16, float16, int8; None: the model's own
    # heads: of their vocabulary projection, int8; a draft model: of its decoder; None: as above
    draft_precision: str | None = None
    draft_with_lm: bool = True  # whether the language model takes part in drafting


def check_options(options: SearchOptions, beam_size: int) -> None:
    """Refuse what no model could do.

    Raises:
        InputError: Names the option, its value and what is allowed.
    """
    check_choice(options.search, [BEAM, GREEDY], "search")
    check_at_least(beam_size, 1, "beam_size")
    for name, least in DRAFT_MINIMA:
        value = getattr(options, name)
        if value is not None:
            check_at_least(value, least, name)
    build_rule(options)
    check_drafter(options)
    greedy = options.search == GREEDY
    if options.acceptance not in (EXACT, THRESHOLD) and not greedy:
        raise InputError(
            f"acceptance: {options.acceptance}; allowed with search: beam: exact, threshold, or "
            "set search: greedy"
        )
    if options.acceptance == THRESHOLD and options.draft_width not in (None, 1):
        raise InputError(
            f"draft_width: {options.draft_width}; allowed with acceptance: threshold: 1"
        )
    if options.acceptance == THRESHOLD and not greedy and options.draft_budget is not None:
        raise InputError(
            f"draft_budget: {options.draft_budget}; allowed with search: beam and acceptance: "
            "threshold: none, drafts are part of the hypotheses there; set draft_depth or beam_size"
        )
    if options.acceptance == THRESHOLD and options.lookahead != FIXED:
        raise InputError(
            f"lookahead: {options.lookahead}; allowed with acceptance: threshold: fixed, as "
            "nothing there says which drafts were right"
        )
    _check_ctc_first(options)
    _check_patience(options, beam_size)
    choices = options.medusa_choices
    if choices:
        if not greedy:
            raise InputError("medusa_choices: allowed with search: greedy; use draft_width here")
        if options.draft_width is not None or options.draft_depth is not None:
            raise InputError("medusa_choices: not allowed with draft_width or draft_depth")
        if choices[0] != 1 or any(type(choice) is not int or choice < 1 for choice in choices):
            raise InputError(
                f"medusa_choices: {choices}; allowed: 1 for the root, then how many tokens hang "
                "behind each node of head 1, head 2, ..., each 1 or more"
            )


def _check_ctc_first(options: SearchOptions) -> None:
    for name, value in options.ctc_thresholds.items():
        if not value >= 0:  # nor is it no number
            raise InputError(f"{name}: {value}; allowed: 0 or more, or leave it out")
        if options.search != GREEDY:
            raise InputError(
                f"{name}: {value}; allowed with search: greedy: CTC gives one hypothesis, no beam"
            )
        if options.acceptance != EXACT:
            raise InputError(
                f"{name}: {value}; allowed with acceptance: exact, which is what is written behind "
                f"CTC's tokens; acceptance is {options.acceptance}"
            )


def _check_patience(options: SearchOptions, beam_size: int) -> None:
    if options.patience is not None:
        check_above(options.patience, 0, "patience", MAX_PATIENCE)
        if round(beam_size * options.patience) < 1:
            raise InputError(
                f"patience: {options.patience}; allowed with beam_size {beam_size}: more, so that "
                "at least one hypothesis ends"
            )
    if options.length_penalty is not None and not 0 <= options.length_penalty <= 1:
        raise InputError(f"length_penalty: {options.length_penalty}; allowed: 0 to 1")
    for name in ("patience", "length_penalty"):
        if getattr(options, name) is not None and (
            options.search == GREEDY or options.acceptance == THRESHOLD
        ):
            raise InputError(
                f"{name}: {getattr(options, name)}; allowed with search: beam and acceptance: exact"
            )


def draft_shape(
    options: SearchOptions, decoder: TreeDecoder, proposer: Proposer | None, width: int
) -> DraftShape:
    """What is drafted with this model.

    Args:
        options: As given.
        decoder: Says how many heads there are.
        proposer: Drafts.
        width: The search's own.

    Raises:
        InputError: Deeper than the heads, or unverified drafts of heads that were never trained.
    """
    greedy, unverified = options.search == GREEDY, options.acceptance == THRESHOLD
    most = 0 if proposer is None else proposer.max_steps
    choices = tuple(options.medusa_choices or ())[1:] or None
    depth, name = options.draft_depth, "draft_depth"
    if choices is not None:
        depth, name = len(choices), "medusa_choices: depth"
    if depth is None:
        depth = default_depth(proposer, decoder, greedy)
        if options.lookahead != FIXED and depth > 0:
            furthest = max(depth, LOOKAHEAD_DEPTH)
            depth = furthest if most is None else min(furthest, most)
    if most is not None and depth > most:
        why = "the heads of this model" if most else "this model has no heads; see drafter"
        raise InputError(f"{name}: {depth}; allowed: at most {most}, {why}")
    by_heads = proposer is not None and proposer.needs_head_input
    if unverified and depth > 0 and by_heads and not decoder.heads_trained:
        raise InputError(
            "acceptance: threshold; this model's heads were never trained and nothing would verify "
            "what they draft; allowed: exact, typical, top_m, or a model with trained heads"
        )
    budget = options.draft_budget
    if budget is None and not unverified:
        budget = default_budget(proposer, greedy)
    return DraftShape(
        depth=depth,
        width=options.draft_width or width,
        budget=budget,
        choices=choices,
        left_out=frozenset() if options.draft_with_lm else frozenset(["lm"]),
        lookahead=build_lookahead(options.lookahead, depth),
    )


def build_greedy(
    options: SearchOptions,
    decoder: TreeDecoder,
    vocab_size: int,
    eos: int,
    device: torch.device,
    sources: DraftSources = NO_SOURCES,
) -> GreedySearch:
    """Greedy search with the options' rule.

    Args:
        decoder: Evaluates nodes.
        sources: What drafts beside its heads, and CTC that decides before the decoder.

    Raises:
        InputError: The model cannot draft like that, or has no CTC branch to decide.
    """
    proposer = build_proposer(options, decoder, vocab_size, eos, sources)
    shape = draft_shape(options, decoder, proposer, width=1)
    constraints = build_constraints(options, vocab_size, eos, device)
    parts = decoder, build_rule(options), constraints, proposer, shape
    if not options.ctc_thresholds:
        return GreedySearch(*parts)
    if sources.ctc is None:
        name, value = next(iter(options.ctc_thresholds.items()))
        raise InputError(
            f"{name}: {value}; this model has no CTC branch (model_conf.ctc_weight: 0); leave it "
            "out"
        )
    ctc = build_ctc(sources, vocab_size, eos)
    return CTCFirstSearch(*parts, CTCFirst(ctc, constraints, options))


def build_beam(
    options: SearchOptions,
    decoder: TreeDecoder,
    scorers: Mapping[str, Any],
    ctc: torch.nn.Module | None,
    weights: Mapping[str, float],
    beam_size: int,
    vocab_size: int,
    eos: int,
    normalize_length: bool,
    device: torch.device,
    sources: DraftSources = NO_SOURCES,
    nbest: int | None = None,
) -> BeamSearch:
    """Beam search with ESPnet's scorers, or with unverified drafts and without other scorers.

    Args:
        decoder: Evaluates nodes.
        scorers: Full scorers beside the decoder.
        ctc: ESPnet's CTC module, None when it does not score.
        weights: Of all scorers.
        sources: What drafts beside its heads.
        nbest: Hypotheses asked for; None: all that end.

    Raises:
        InputError: The model cannot draft like that, or a scorer has no place in this search.
    """
    if nbest is not None:
        check_at_least(nbest, 1, "nbest")
    if options.acceptance == THRESHOLD or options.is_patient:
        why = "acceptance: threshold, as drafts stand there before others could score them"
        if options.is_patient:
            why = "patience or length_penalty, which rank by the decoder's probabilities"
        _check_lone_decoder([*scorers, *(["ctc"] if ctc is not None else [])], weights, why)
    proposer = build_proposer(options, decoder, vocab_size, eos, sources)
    shape = draft_shape(options, decoder, proposer, width=beam_size)
    constraints = build_constraints(options, vocab_size, eos, device)
    if options.acceptance == THRESHOLD:
        return ThresholdBeamSearch(
            decoder,
            constraints,
            proposer,
            options.threshold,
            beam_size,
            shape.depth,
            normalize_length,
            nbest,
        )
    if options.is_patient:
        return PatientBeamSearch(decoder, beam_size, constraints, proposer, shape, options, nbest)
    return BeamSearch(
        decoder,
        scorers,
        None if ctc is None else ctc.log_softmax,
        weights,
        beam_size,
        constraints,
        proposer,
        shape,
        normalize_length,
        nbest,
    )


def _check_lone_decoder(names: Iterable[str], weights: Mapping[str, float], why: str) -> None:
    """Refuse scorers beside the decoder."""
    for name in names:
        if weights.get(name, 0) != 0:
            raise InputError(
                f"{WEIGHT_OPTIONS.get(name, name)}: {weights[name]}; allowed: 0 with search: beam "
                f"and {why}"
            )
