"""Copies of a Speech2Text with a draft model or other options, which share its weights."""

import copy
from dataclasses import replace
from typing import Any

from espnet_medusa.decoding.draft.model import DraftModelProposer
from espnet_medusa.decoding.search.acceptance import AcceptanceRule
from espnet_medusa.decoding.search.beam import beam_search
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.search.scores import DECODER_ALONE
from espnet_medusa.inference.speech2text import Speech2Text


def drafted(
    speech2text: Speech2Text,
    beam_size: int | None = None,
    rule: AcceptanceRule | None = None,
    by: Speech2Text | None = None,
    **options: Any,
) -> Speech2Text:
    """Return a copy that drafts with the model ``by``, by default itself.

    Without ``beam_size`` the search is greedy; without ``rule`` it accepts as the model does.
    """
    own = speech2text.search
    constraints, drafting = own.strategy.scoring.constraints, (by or speech2text).search.decoder
    draft = DraftModelProposer(drafting, constraints.eos), DraftShape(4, beam_size or 1)
    if beam_size is None:
        search = greedy_search(own.decoder, rule or own.strategy.rule, constraints, *draft)
    else:
        search = beam_search(own.decoder, DECODER_ALONE, beam_size, constraints, *draft)
    return with_model(with_options(speech2text, **options), search=search)


def with_options(speech2text: Speech2Text, **options: Any) -> Speech2Text:
    return with_model(speech2text, options=replace(speech2text.model.options, **options))


def with_model(speech2text: Speech2Text, **parts: Any) -> Speech2Text:
    other = copy.copy(speech2text)
    other.model = replace(speech2text.model, **parts)
    other.asr_model = other.model.asr_model
    return other
