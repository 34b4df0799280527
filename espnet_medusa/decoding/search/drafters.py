"""Build drafters from decode options: heads, CTC, a draft model, and their combinations."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.draft.cascade import CascadeProposer
from espnet_medusa.decoding.draft.ctc import CTCProposer
from espnet_medusa.decoding.draft.ctc_hypothesis import Retokenization
from espnet_medusa.decoding.draft.mixed import MixedProposer
from espnet_medusa.decoding.draft.model import DraftModelProposer
from espnet_medusa.decoding.draft.text import HypothesisProposer, TextProposer
from espnet_medusa.decoding.search.search_options import (
    CTC,
    HEADS,
    MODEL,
    TEXT,
    THRESHOLD,
    SearchOptions,
)
from espnet_medusa.decoding.tree.proposer import Proposer
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder

logger = logging.getLogger(__name__)

MODEL_DEPTH = 5  # each step is a call of the draft model
# Of CTC and of a text. A step of beam search has several nodes to evaluate.
CTC_DEPTH, CTC_BEAM_DEPTH = 40, 15
CTC_BEAM_BUDGET = 60
BEAM_DEPTH = 5  # of heads in beam search, at most, if seconds are measured
WITH_CTC = HypothesisProposer | MixedProposer | CascadeProposer
LOOKAHEAD_DEPTH = (
    15  # minimum default of draft_depth with lookahead: acceptance, if max_steps allows it
)


@dataclass(frozen=True)
class DraftSources:
    """Sources of drafts other than the decoder's heads."""

    # ``(encoder output (1, S, D)) -> (1, S', V)`` log-probabilities of the model's CTC branch.
    ctc: Callable[[torch.Tensor], torch.Tensor] | None = None
    blank: int = 0  # blank id of the CTC branch
    model: Callable[[], Proposer] | None = None  # opens the draft model
    # ``(size, eos) -> (N,)`` most frequent training tokens and the end symbol, ascending ids.
    frequent_tokens: Callable[[int, int], torch.Tensor] | None = None
    # Builds the conversion of CTC's units to the decoder's tokens; None: they are the same.
    retokenization: Callable[[], Retokenization] | None = None


NO_SOURCES = DraftSources()


def build_proposer(
    options: SearchOptions, decoder: TreeDecoder, vocab_size: int, eos: int, sources: DraftSources
) -> Proposer | None:
    """Build the drafter without a text, or None without drafts.

    Raise InputError if the model lacks a part.
    """
    drafter = options.after_text
    if drafter == TEXT:
        return None
    if drafter is None:
        drafter = MODEL if sources.model is not None and not decoder.num_heads else HEADS
    names = drafter.split("+")
    if MODEL not in names and sources.model is not None:
        logger.warning(f"draft_model is not used, because drafter is {drafter}; set drafter: model")
    if options.draft_depth == 0:
        return None
    vocabulary = None
    if options.draft_vocab_size is not None and MODEL not in names:
        vocabulary = sources.frequent_tokens(options.draft_vocab_size, eos)
        never = torch.tensor(options.suppress_tokens or [], device=vocabulary.device)
        vocabulary = vocabulary[~torch.isin(vocabulary, never)]
    main = None
    if HEADS in names:
        verified = options.acceptance != THRESHOLD
        main = decoder.proposer(vocabulary, options.draft_precision, verified)
        if main is None and options.drafter is not None:
            raise InputError(
                f"drafter: {options.drafter}; this model has no heads; {_allowed(sources, decoder)}"
            )
    if MODEL in names:
        if sources.model is None:
            raise InputError(
                f"drafter: {options.drafter} needs draft_model: an experiment folder of ESPnet or "
                "a Whisper model"
            )
        if options.draft_vocab_size is not None:
            raise InputError(
                f"draft_vocab_size: {options.draft_vocab_size}; a draft model has its own tokens; "
                "omit it"
            )
        main = sources.model()
    if CTC not in names:
        return main
    if sources.ctc is None:
        raise InputError(
            f"drafter: {options.drafter}; this model has no CTC branch (model_conf.ctc_weight: 0); "
            f"{_allowed(sources, decoder)}"
        )
    ctc = build_ctc(sources, vocab_size, eos, vocabulary)
    return ctc if main is None else MixedProposer(ctc, main, options.ctc_draft_share)


def build_ctc(
    sources: DraftSources, vocab_size: int, eos: int, vocabulary: torch.Tensor | None = None
) -> CTCProposer:
    """Build the drafter of the CTC branch; it drafts only ``vocabulary`` (V',); None: all."""
    retokenization = None if sources.retokenization is None else sources.retokenization()
    return CTCProposer(sources.ctc, vocab_size, eos, sources.blank, vocabulary, retokenization)


def text_drafter(
    proposer: Proposer | None, depth: int, vocab_size: int, eos: int, times: range
) -> Proposer:
    """Return the drafter of given texts, followed by ``proposer``, if any, of at most ``depth``."""
    vocabulary = None if proposer is None else proposer.vocabulary
    text = TextProposer(vocab_size, eos, vocabulary, times)
    return text if proposer is None else CascadeProposer(text, proposer, depth)


def _allowed(sources: DraftSources, decoder: TreeDecoder) -> str:
    """Return a list of the drafters of this model, for error messages."""
    names = [HEADS] if decoder.num_heads else []
    names += [CTC] if sources.ctc is not None else []
    return f"allowed here: {', '.join([*names, MODEL])} (with draft_model)"


def describe(proposer: Proposer) -> str:
    """Return what the seconds of drafting depend on, besides the decoder."""
    size = "all" if proposer.vocabulary is None else len(proposer.vocabulary)
    return f"{type(proposer).__name__} of {size} tokens"


def default_depth(proposer: Proposer | None, decoder: TreeDecoder, greedy: bool) -> int:
    """Return the default of ``draft_depth`` for a drafter."""
    if proposer is None:
        return 0
    main = proposer.second if isinstance(proposer, MixedProposer) else proposer
    if isinstance(main, DraftModelProposer):
        return MODEL_DEPTH
    if isinstance(proposer, WITH_CTC):
        return CTC_DEPTH if greedy else CTC_BEAM_DEPTH
    return decoder.num_heads


def default_budget(proposer: Proposer | None, greedy: bool) -> int | None:
    """Return the default of ``draft_budget`` for a drafter; None: no limit."""
    return CTC_BEAM_BUDGET if isinstance(proposer, WITH_CTC) and not greedy else None


def hide_tokens(
    ctc: Callable[[torch.Tensor], torch.Tensor], tokens: list[int], blank: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a CTC branch that adds the probabilities of ``tokens`` (such as prompts) to blank."""

    def log_probs(encoder_out: torch.Tensor) -> torch.Tensor:
        scores = ctc(encoder_out)
        silent = scores[..., [*tokens, blank]].logsumexp(dim=-1)
        scores = scores.index_fill(-1, torch.tensor(tokens, device=scores.device), -torch.inf)
        scores[..., blank] = silent
        return scores

    return log_probs
