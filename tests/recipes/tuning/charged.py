"""A clock that only decoder and proposer calls advance, by a price list."""

from dataclasses import dataclass, field

import torch
from scripted import PathDecoder, PathProposer, PathStates, foresight
from tiny import EOS, VOCAB_SIZE, random_encoder_out, tiny_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.acceptance import AcceptanceRule, exact
from espnet_medusa.decoding.search.beam import beam_search
from espnet_medusa.decoding.search.constraints import build_constraints
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.search.scores import DECODER_ALONE
from espnet_medusa.decoding.search.search_options import HEADS, LengthLimits, SearchOptions
from espnet_medusa.decoding.tree.tree_decoder import NodeOutputs
from espnet_medusa.recipes.tuning.available import Drafter
from espnet_medusa.recipes.tuning.held_out import DraftReading, HeldOutBatch
from espnet_medusa.recipes.tuning.trial import Task


@dataclass(frozen=True)
class Offer:
    row: float = 0.01  # seconds per evaluated prefix
    begin: float = 0.0  # seconds per batch
    encoder: float = 0.0  # seconds of the draft model's encoder per batch
    error: float = 0.0  # standard deviation of the noise on its logits
    kind: str = HEADS  # the decode option ``drafter``; heads need the decoder's first call


@dataclass
class Prices:
    """Seconds per decoder call and node, and of drafters; a clock at ``spent`` seconds."""

    call: float = 1.0
    node: float = 0.01
    offers: dict[str, Offer] = field(default_factory=lambda: {"heads": Offer()})
    spent: float = 0.0

    def now(self) -> float:
        return self.spent


class ChargedProposer(PathProposer):
    """Return the decoder's logits with noise, at a price."""

    def __init__(self, logits_after, offer: Offer, prices: Prices):
        super().__init__(logits_after)
        self.offer, self.prices = offer, prices
        self.needs_head_input = offer.kind == HEADS

    def begin(self, context):
        self.prices.spent += self.offer.begin
        return self

    def start(self, prefixes):
        if self.needs_head_input:
            return super().start(prefixes)
        return PathStates([(EOS, *prefix.tokens()) for prefix in prefixes])

    def logits(self, states):
        self.prices.spent += self.offer.row * len(states.paths)
        logits = super().logits(states)
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
        return logits + self.offer.error * noise


class ChargedDecoder(PathDecoder):
    """A decoder with a price list; ``error``: deviation of the noise on calls with many nodes."""

    num_heads = 4

    def __init__(self, decoder, prices: Prices, error=0.0):
        super().__init__(decoder)
        self.prices, self.error = prices, error

    def extend(self, state, tokens, parents):
        self.prices.spent += self.prices.call + self.prices.node * sum(map(len, tokens))
        outputs = super().extend(state, tokens, parents)
        noise = self.error * torch.randn(outputs.hidden.shape, generator=torch.Generator())
        several = max(map(len, tokens)) > 1
        return NodeOutputs(outputs.hidden + several * noise, outputs.head_input)


def make_task(
    prices: Prices, beam_size: int | None = None, seed: int = 0, utterances: int = 2, **options
) -> Task:
    """Return a task of equal utterances, whose encoders take 0.5 s each.

    ``beam_size`` None is greedy search; beam search has the decoder alone. ``options``: ``error``
    of ``ChargedDecoder``, ``rounding``, and fields of ``SearchOptions``.
    """
    rounding, error = options.pop("rounding", False), options.pop("error", 0.0)
    encoder_out, lengths = random_encoder_out(seed, [9])
    module = tiny_decoder(seed, "none", num_blocks=1)
    decoder = ChargedDecoder(build_runtime(module), prices, error)
    logits_after = foresight(module, encoder_out)
    drafters = {
        name: Drafter(name, offer.kind, {None: ChargedProposer(logits_after, offer, prices)})
        for name, offer in prices.offers.items()
    }
    constraints = build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    if beam_size is None:
        search = greedy_search(decoder, AcceptanceRule(exact), constraints)
    else:
        search = beam_search(decoder, DECODER_ALONE, beam_size, constraints)
    readings = {name: DraftReading(None, offer.encoder) for name, offer in prices.offers.items()}
    inputs = encoder_out, lengths, torch.tensor([[EOS]]), 0.09, 0.5, readings
    batches = [HeldOutBatch([key], *inputs) for key in "abcdefgh"[:utterances]]
    options = SearchOptions(search="greedy" if beam_size is None else "beam", **options)
    limits = LengthLimits(maxlenratio=-8)
    return Task(search, options, drafters, batches, limits, 1, prices, rounding)
