"""Choice of the search for a model and its options: greedy, beam, or ESPnet's own."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.precision import Processor
from espnet_medusa.decoding.search.build import SearchModel, build_beam, build_greedy
from espnet_medusa.decoding.search.drafters import DraftSources
from espnet_medusa.decoding.search.scores import Scorers
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.search_options import GREEDY, SearchOptions
from espnet_medusa.inference.decoding_model import DecodingModel, DraftModelOnDemand, draft_sources
from espnet_medusa.networks.espnet_compat import PROMPT_COUNTS, BatchBeamSearch, BeamSearch
from espnet_medusa.networks.espnet_transformer import SEARCHABLE, searchable, unknown_part

logger = logging.getLogger(__name__)


def with_search(
    model: DecodingModel, espnet_options: Mapping[str, Any], espnet: BeamSearch | None
) -> DecodingModel:
    """Add a greedy or beam search over the model's decoder, and the draft model that it uses.

    ``espnet`` is the search that ESPnet built for the model and its options. If it must decode, log
    the reason and return the unchanged model. Raise InputError if the model does not support the
    options.
    """
    options, network = model.options, model.asr_model
    reason = unknown_part(network.decoder)
    if options.search == GREEDY:
        _check_greedy(reason, espnet_options)
    else:
        reason = reason or unsupported_beam(espnet)
    if reason is not None:
        logger.warning(
            "ESPnet's own search decodes, one utterance at a time, without drafts and in the "
            f"model's precision; the reason: {reason}"
        )
        return model
    open_draft_model = None if options.draft_model is None else DraftModelOnDemand(model)
    sources = draft_sources(model, open_draft_model)
    parts = network.decoder, espnet, full_scorers(espnet), sources
    times = range(0) if model.prompts is None else model.prompts.tokens.times
    search = build_search(options, *parts, model.writer.nbest, times)
    logger.info(
        f"{type(search.strategy).__name__}, drafts: {search.planner.shape}; "
        f"{Processor.of(model.device).value}, decoder: {search.decoder.precision}, "
        f"encoder: {model.encoder.precision}"
    )
    model = replace(model, search=search)
    return model.with_draft_model(open_draft_model and open_draft_model.opened)


def build_search(
    options: SearchOptions,
    decoder: torch.nn.Module,
    espnet: BeamSearch,
    full: Mapping[str, Any],
    sources: DraftSources,
    nbest: int,
    times: range = range(0),
) -> Search:
    """Build a greedy search, or a beam search with the scorers of ESPnet's search.

    ``decoder`` is the model's; ``full`` has the scorers of ``full_scorers`` or replacements;
    ``times`` are the ids of timestamps. Raise InputError if the model does not support the options.
    """
    model = SearchModel(
        build_runtime(searchable(decoder), options.decoder_precision),
        *(len(espnet.token_list), espnet.eos, next(decoder.parameters()).device),
        sources=sources,
        other_ends=tuple(getattr(decoder, "end_tokens", ())),
        times=times,
    )
    if options.search == GREEDY:
        return build_greedy(options, model)
    ctc = getattr(espnet.part_scorers.get("ctc"), "ctc", None)  # None: no scorer, or no branch
    ctc = None if ctc is None else ctc.log_softmax
    model = replace(model, scorers=Scorers(espnet.weights, full, ctc, PROMPT_COUNTS))
    return build_beam(options, model, espnet.beam_size, espnet.normalize_length, nbest)


def full_scorers(espnet: BeamSearch | None) -> dict[str, Any]:
    """Return ESPnet's scorers over the whole vocabulary, without the decoder."""
    scorers = {} if espnet is None else espnet.full_scorers
    return {name: part for name, part in scorers.items() if name != "decoder"}


def unsupported_beam(espnet: BeamSearch | None) -> str | None:
    """Return the part of ESPnet's search that our beam search does not support, or None."""
    if type(espnet) is not BatchBeamSearch:
        return "no beam search" if espnet is None else type(espnet).__name__
    if "decoder" not in espnet.full_scorers:
        return "ctc_weight: 1"
    others = espnet.part_scorers.keys() - {"ctc"}
    return f"partial scorers: {', '.join(sorted(others))}" if others else None


def _check_greedy(reason: str | None, espnet_options: Mapping[str, Any]) -> None:
    """Refuse options that greedy search does not support; warn of those that it ignores."""
    if reason is not None:
        raise InputError(
            f"search: greedy needs decoder: {SEARCHABLE}; "
            f"this model has {reason}; allowed here: beam"
        )
    for name in ("lm_train_config", "ngram_file"):
        if espnet_options.get(name) is not None:
            logger.warning(f"{name} is not used: search: greedy only uses the decoder's scores")
    if espnet_options.get("nbest", 1) != 1:
        raise InputError(f"nbest: {espnet_options['nbest']}; search: greedy allows only 1")
