"""Who drafts, how far, and what a model has to draft with: decode options to proposers."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from espnet_medusa.draft.ctc import CTCProposer
from espnet_medusa.draft.ctc_hypothesis import Retokenization
from espnet_medusa.draft.mixed import MixedProposer
from espnet_medusa.draft.model import DraftModelProposer
from espnet_medusa.errors import InputError
from espnet_medusa.search.ahead.lookahead import ByAcceptance, ByCost, Lookahead
from espnet_medusa.search.options import (
    ACCEPTANCE,
    CTC,
    FIXED,
    HEADS,
    MODEL,
    THRESHOLD,
    SearchOptions,
)
from espnet_medusa.tree.proposer import Proposer
from espnet_medusa.tree.tree_decoder import TreeDecoder

logger = logging.getLogger(__name__)

MODEL_DEPTH = 5  # each step is a call of the draft model
CTC_DEPTH, CTC_BEAM_DEPTH = 40, 15  # steps are free, nodes are not: a beam has several a step
CTC_BEAM_BUDGET = 60
LOOKAHEAD_DEPTH = 15  # how far a lookahead may go at least, unless draft_depth says so


@dataclass(frozen=True)
class DraftSources:
    """What can draft beside the decoder's heads.

    Attributes:
        ctc: ``(memory (1, S, D)) -> (1, S', V)`` log-probabilities of the model's CTC branch.
        blank: Its blank.
        model: Opens the draft model; None where none is given.
        frequent_tokens: ``(size, eos) -> (N,)`` the most frequent tokens of the heads' training,
            ascending, the end symbol among them.
        retokenization: Opens what CTC needs where its units are not the decoder's tokens.
    """

    ctc: Callable[[torch.Tensor], torch.Tensor] | None = None
    blank: int = 0
    model: Callable[[], Proposer] | None = None
    frequent_tokens: Callable[[int, int], torch.Tensor] | None = None
    retokenization: Callable[[], Retokenization] | None = None


NO_SOURCES = DraftSources()


def build_proposer(
    options: SearchOptions, decoder: TreeDecoder, vocab_size: int, eos: int, sources: DraftSources
) -> Proposer | None:
    """What drafts; None where nothing does.

    Args:
        options: As given.
        decoder: Evaluates nodes; its heads may draft.
        vocab_size: V.
        eos: End symbol.
        sources: What there is beside heads.

    Raises:
        InputError: The model has nothing of the kind.
    """
    if options.draft_depth == 0:
        return None
    drafter = options.drafter
    if drafter is None:
        drafter = MODEL if sources.model is not None and not decoder.num_heads else HEADS
    names = drafter.split("+")
    if MODEL not in names and sources.model is not None:
        logger.warning(f"draft_model is not used: drafter: {drafter}; set drafter: model")
    vocabulary = None
    if options.draft_vocab_size is not None and MODEL not in names:
        vocabulary = sources.frequent_tokens(options.draft_vocab_size, eos)
    main = None
    if HEADS in names:
        verified = options.acceptance != THRESHOLD
        main = decoder.proposer(vocabulary, options.draft_precision, verified)
        if main is None and options.drafter is not None:
            raise InputError(
                f"drafter: {drafter}; this model has no heads; {_allowed(sources, decoder)}"
            )
    if MODEL in names:
        main = _draft_model(options, sources)
    if CTC not in names:
        return main
    if sources.ctc is None:
        raise InputError(
            f"drafter: {drafter}; this model has no CTC branch (model_conf.ctc_weight: 0); "
            f"{_allowed(sources, decoder)}"
        )
    ctc = build_ctc(sources, vocab_size, eos, vocabulary)
    return ctc if main is None else MixedProposer(ctc, main, options.ctc_draft_share)


def build_ctc(
    sources: DraftSources, vocab_size: int, eos: int, vocabulary: torch.Tensor | None = None
) -> CTCProposer:
    """What drafts by the model's CTC branch, which it has.

    Args:
        sources: Has the branch.
        vocab_size: V.
        eos: End symbol.
        vocabulary: (V',) tokens that may be drafted; None: all.
    """
    retokenization = None if sources.retokenization is None else sources.retokenization()
    return CTCProposer(sources.ctc, vocab_size, eos, sources.blank, vocabulary, retokenization)


def _draft_model(options: SearchOptions, sources: DraftSources) -> Proposer:
    if sources.model is None:
        raise InputError(
            f"drafter: {options.drafter or MODEL} needs draft_model: an experiment folder of "
            "ESPnet or a Whisper"
        )
    if options.draft_vocab_size is not None:
        raise InputError(
            f"draft_vocab_size: {options.draft_vocab_size}; a draft model has its own tokens; "
            "leave it out"
        )
    return sources.model()


def _allowed(sources: DraftSources, decoder: TreeDecoder) -> str:
    """What this model can draft with, as the end of a message."""
    found = [HEADS] if decoder.num_heads else []
    found += [CTC] if sources.ctc is not None else []
    return f"allowed here: {', '.join([*found, MODEL])} (with draft_model)"


def default_depth(proposer: Proposer | None, decoder: TreeDecoder, greedy: bool) -> int:
    """Steps to run ahead where nobody says how many.

    Args:
        proposer: Drafts.
        decoder: Says how many heads there are.
        greedy: Whether the search has one hypothesis.
    """
    if _has_model(proposer):
        return MODEL_DEPTH
    if _has_ctc(proposer):
        return CTC_DEPTH if greedy else CTC_BEAM_DEPTH
    return decoder.num_heads


def default_budget(proposer: Proposer | None, greedy: bool) -> int | None:
    """Most nodes in a call where nobody says how many; None without limit."""
    return CTC_BEAM_BUDGET if _has_ctc(proposer) and not greedy else None


def _has_ctc(proposer: Proposer | None) -> bool:
    return isinstance(proposer, CTCProposer | MixedProposer)


def _has_model(proposer: Proposer | None) -> bool:
    found = proposer.second if isinstance(proposer, MixedProposer) else proposer
    return isinstance(found, DraftModelProposer)


def build_lookahead(name: str, most: int) -> Lookahead | None:
    """What chooses depths up to ``most``; None: always as deep."""
    if name == FIXED or most < 1:
        return None
    return ByAcceptance(1, most) if name == ACCEPTANCE else ByCost(0, most)


def hide_tokens(
    ctc: Callable[[torch.Tensor], torch.Tensor], tokens: list[int], blank: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A CTC branch that takes tokens for silence, such as those of prompts.

    Args:
        ctc: As ``DraftSources``'s.
        tokens: Never to be heard.
        blank: What is heard in their place.
    """

    def log_probs(memory: torch.Tensor) -> torch.Tensor:
        found = ctc(memory)
        silent = found[..., [*tokens, blank]].logsumexp(dim=-1)
        found = found.index_fill(-1, torch.tensor(tokens, device=found.device), -torch.inf)
        found[..., blank] = silent
        return found

    return log_probs
