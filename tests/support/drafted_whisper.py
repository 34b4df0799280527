"""A Speech2Text that drafts for itself, without being opened once more."""

import copy
from dataclasses import replace

from espnet_medusa.draft.model import DraftModelSurrogate
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.search.ahead.shape import DraftShape
from espnet_medusa.search.beam import BeamSearch
from espnet_medusa.search.greedy import GreedySearch
from espnet_medusa.search.scores import DECODER as SCORES


def drafted(speech2text: Speech2Text, beam_size: int | None = None, **options) -> Speech2Text:
    """The same with itself as draft model, greedy or in a beam; options of the search beside."""
    other, own = copy.copy(speech2text), speech2text.search
    constraints = own.strategy.scoring.constraints
    draft = DraftModelSurrogate(own.decoder, constraints.eos), DraftShape(4, beam_size or 1)
    if beam_size is None:
        other.search = GreedySearch(own.decoder, own.strategy.rule, constraints, *draft)
    else:
        weights = {SCORES: 1.0}
        parts = own.decoder, {}, None, weights, beam_size, constraints
        other.search = BeamSearch(*parts, *draft)
    other.search_options = replace(speech2text.search_options, **options)
    return other
