"""Decode options, checked against the model, and the searches that they describe."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_at_least
from espnet_medusa.search.acceptance import build_rule
from espnet_medusa.search.ahead.shape import DraftShape
from espnet_medusa.search.beam import BeamSearch
from espnet_medusa.search.constraints import build_constraints
from espnet_medusa.search.ctc_first import CTCFirst, CTCFirstSearch
from espnet_medusa.search.drafters import (
    LOOKAHEAD_DEPTH,
    NO_SOURCES,
    DraftSources,
    build_ctc,
    build_lookahead,
    build_proposer,
    default_budget,
    default_depth,
)
from espnet_medusa.search.greedy import GreedySearch
from espnet_medusa.search.options import FIXED, GREEDY, THRESHOLD, SearchOptions
from espnet_medusa.search.patient_beam import PatientBeamSearch
from espnet_medusa.search.threshold_beam import ThresholdBeamSearch
from espnet_medusa.tree.proposer import Proposer
from espnet_medusa.tree.tree_decoder import TreeDecoder

WEIGHT_OPTIONS = {  # ESPnet's, by scorer
    "ctc": "ctc_weight",
    "lm": "lm_weight",
    "ngram": "ngram_weight",
    "length_bonus": "penalty",
}


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
