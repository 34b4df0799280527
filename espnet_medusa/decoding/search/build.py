"""Build searches from decode options and a model."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_at_least
from espnet_medusa.decoding.search import drafters
from espnet_medusa.decoding.search.acceptance import build_rule
from espnet_medusa.decoding.search.beam import beam_search
from espnet_medusa.decoding.search.constraints import Constraints, build_constraints
from espnet_medusa.decoding.search.ctc_first import CTCFirstPlanner, CTCFirstStrategy
from espnet_medusa.decoding.search.drafting.auto_depth import AutoDepth
from espnet_medusa.decoding.search.drafting.lookahead import ByAcceptance, DraftShape
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.search.patient_beam import patient_beam_search
from espnet_medusa.decoding.search.scores import DECODER, DECODER_ALONE, Scorers
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.search_options import (
    ACCEPTANCE,
    AUTO,
    FIXED,
    GREEDY,
    TEXT,
    THRESHOLD,
    SearchOptions,
)
from espnet_medusa.decoding.search.threshold_beam import threshold_beam_search
from espnet_medusa.decoding.tree.proposer import HeadsProposer, Proposer
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder

WEIGHT_OPTIONS = {  # ESPnet's option of each scorer's weight
    "ctc": "ctc_weight",
    "lm": "lm_weight",
    "ngram": "ngram_weight",
    "length_bonus": "penalty",
}


@dataclass(frozen=True)
class SearchModel:
    """The parts of a model that searches use."""

    decoder: TreeDecoder  # includes the heads
    vocab_size: int  # V
    eos: int  # end symbol
    device: torch.device
    scorers: Scorers = DECODER_ALONE  # of beam search
    sources: drafters.DraftSources = drafters.NO_SOURCES  # of drafts other than heads
    other_ends: tuple[int, ...] = ()  # tokens that end a text like ``eos``
    times: range = range(0)  # token ids of timestamps

    def constraints(self, options: SearchOptions) -> Constraints:
        """Build the constraints; errors as ``build_constraints``."""
        parts = self.vocab_size, self.eos, self.device, self.other_ends
        return build_constraints(options, *parts)


def draft_shape(
    options: SearchOptions,
    decoder: TreeDecoder,
    proposer: Proposer | None,
    width: int,
    scorers: Iterable[str] = (),
) -> DraftShape:
    """Return the shape of drafts; ``width`` is the default of ``draft_width``.

    ``scorers``: names of those that take time, besides the decoder.

    Raise InputError for a depth above ``max_steps``, or unverified drafts of untrained heads.
    """
    greedy, unverified = options.search == GREEDY, options.acceptance == THRESHOLD
    most = 0 if proposer is None else proposer.max_steps
    choices = tuple(options.medusa_choices)[1:] if options.medusa_choices else None
    depth, name = options.draft_depth, "draft_depth"
    if proposer is None and options.drafter == TEXT:
        depth = 0
    if choices is not None:
        depth, name = len(choices), "medusa_choices: depth"
    first, kind = depth, options.chosen_lookahead
    if depth is None:
        depth = first = drafters.default_depth(proposer, decoder, greedy)
        if kind == ACCEPTANCE and depth > 0:
            deepest = max(depth, drafters.LOOKAHEAD_DEPTH)
            depth = deepest if most is None else min(deepest, most)
        elif not greedy and options.drafter is None and isinstance(proposer, HeadsProposer):
            # Drafted beams often cost more than they save, until seconds are measured.
            first, depth = 0, min(depth, drafters.BEAM_DEPTH)
    if most is not None and depth > most:
        reason = "one per head of this model" if most else "this model has no heads; see drafter"
        raise InputError(f"{name}: {depth}; allowed: at most {most}, {reason}")
    by_heads = proposer is not None and proposer.needs_head_input
    if unverified and depth > 0 and by_heads and not decoder.heads_trained:
        raise InputError(
            "acceptance: threshold; this model's heads were never trained and their drafts would "
            "not be verified; allowed: exact (greedy: also typical, top_m), or trained heads"
        )
    budget = options.draft_budget
    if budget is None and not unverified:
        budget = drafters.default_budget(proposer, greedy)
    width, lookahead = options.draft_width or width, None
    if depth > 0 and kind == ACCEPTANCE:
        lookahead = ByAcceptance(1, depth)
    elif depth > 0 and kind == AUTO:
        parts = decoder.description, drafters.describe(proposer), options.search, *scorers
        shape = f"{width} wide, at most {depth} deep, {budget} nodes"
        lookahead = AutoDepth(first, decoder.draft_depths(depth), ", ".join([*parts, shape]))
    return DraftShape(
        depth=depth,
        width=width,
        budget=budget,
        min_probability=options.draft_min_probability or 0.0,
        choices=choices,
        lookahead=lookahead,
    )


def with_text_drafts(search: Search, options: SearchOptions, model: SearchModel) -> Search:
    """Add a planner for utterances that have a draft text, unless the options exclude it."""
    planner, greedy = search.planner, options.search == GREEDY
    excluded = options.acceptance == THRESHOLD or options.medusa_choices
    if excluded or not options.drafts_text:
        return search
    parts = model.vocab_size, model.eos, model.times
    proposer = drafters.text_drafter(planner.proposer, planner.shape.depth, *parts)
    depth = options.draft_depth if options.drafter == TEXT else None
    if depth is None:
        depth = max(drafters.default_depth(proposer, model.decoder, greedy), planner.shape.depth)
    fixed = FIXED if options.chosen_lookahead == AUTO else options.lookahead
    options = replace(options, draft_depth=depth, lookahead=fixed)
    shape = draft_shape(options, model.decoder, proposer, planner.shape.width)
    search.text_planner = type(planner)(planner.strategy, proposer, shape)
    return search


def build_greedy(options: SearchOptions, model: SearchModel) -> Search:
    """Build greedy search; raise InputError if the model lacks the drafter or a CTC branch."""
    decoder, vocab_size, eos = model.decoder, model.vocab_size, model.eos
    constraints = model.constraints(options)
    proposer = drafters.build_proposer(options, decoder, vocab_size, eos, model.sources)
    shape = draft_shape(options, decoder, proposer, width=1)
    rule = build_rule(options)
    if not options.ctc_thresholds:
        search = greedy_search(decoder, rule, constraints, proposer, shape)
        return with_text_drafts(search, options, model)
    if model.sources.ctc is None:
        name, value = next(iter(options.ctc_thresholds.items()))
        raise InputError(
            f"{name}: {value}; this model has no CTC branch (model_conf.ctc_weight: 0); omit it"
        )
    ctc = drafters.build_ctc(model.sources, vocab_size, eos)
    strategy = CTCFirstStrategy(rule, constraints, decoder.best_tokens, ctc, options)
    search = Search(decoder, CTCFirstPlanner(strategy, proposer, shape))
    return with_text_drafts(search, options, model)


def build_beam(
    options: SearchOptions,
    model: SearchModel,
    beam_size: int,
    normalize_length: bool = False,
    nbest: int | None = None,
) -> Search:
    """Build exact, openai-whisper's or threshold beam search; arguments as in ``beam_search``.

    Raise InputError if the model lacks the drafter, or a scorer is not allowed with this search.
    """
    if nbest is not None:
        check_at_least(nbest, 1, "nbest")
    reason = None
    if options.acceptance == THRESHOLD:
        reason = "acceptance: threshold, as only the drafter scores its drafts"
    elif options.is_patient:
        reason = "patience or length_penalty, which rank by the decoder's probabilities"
    for name, weight in model.scorers.active_weights.items():
        if reason is not None and name != DECODER:
            option = WEIGHT_OPTIONS.get(name, name)
            raise InputError(f"{option}: {weight}; allowed: 0 with search: beam and {reason}")
    decoder = model.decoder
    constraints = model.constraints(options)
    proposer = drafters.build_proposer(options, decoder, model.vocab_size, model.eos, model.sources)
    scorers = model.scorers.active_weights
    shape = draft_shape(options, decoder, proposer, beam_size, scorers)
    if options.acceptance == THRESHOLD:
        parts = decoder, constraints, proposer, options.threshold, beam_size, shape.depth
        return threshold_beam_search(*parts, normalize_length, nbest)
    if options.is_patient:
        parts = decoder, beam_size, constraints, proposer, shape, options, nbest
        return with_text_drafts(patient_beam_search(*parts), options, model)
    parts = decoder, model.scorers, beam_size, constraints, proposer, shape
    return with_text_drafts(beam_search(*parts, normalize_length, nbest), options, model)
