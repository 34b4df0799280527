"""A clock that moves only when a decoder or a proposer does something, by a price list."""

from dataclasses import dataclass, field

import torch
from clairvoyant import PathDecoder, PathProposer, PathStates, foresight
from tiny import EOS, VOCAB_SIZE, random_memory, tiny_decoder

from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.acceptance import AcceptanceRule, exact
from espnet_medusa.search.beam import BeamSearch
from espnet_medusa.search.constraints import build_constraints
from espnet_medusa.search.greedy import GreedySearch
from espnet_medusa.search.options import HEADS, LengthLimits, SearchOptions
from espnet_medusa.tree.tree_decoder import NodeOutputs
from espnet_medusa.tuning.available import Drafter
from espnet_medusa.tuning.held_out import DraftReading, HeldOutBatch
from espnet_medusa.tuning.trial import Task


@dataclass(frozen=True)
class Offer:
    """What a drafter asks and gives.

    Attributes:
        row: Seconds for each prefix that it is asked about.
        begin: Seconds once for a batch.
        encoder: Seconds of its own encoder for a batch.
        error: Size of the noise in what it says.
        kind: Of drafter; heads wait for the decoder's first call, others do not.
    """

    row: float = 0.01
    begin: float = 0.0
    encoder: float = 0.0
    error: float = 0.0
    kind: str = HEADS


@dataclass
class Prices:
    """Seconds of things; ``spent`` is the time."""

    call: float = 1.0
    node: float = 0.01
    offers: dict[str, Offer] = field(default_factory=lambda: {"heads": Offer()})
    spent: float = 0.0

    def now(self) -> float:
        return self.spent


class ChargedProposer(PathProposer):
    """Knows what the decoder will say, more or less, for a price.

    Args:
        say: As ``PathProposer``'s.
        offer: Of this drafter.
        prices: Hold the time.
    """

    def __init__(self, say, offer: Offer, prices: Prices):
        super().__init__(say)
        self.offer, self.prices = offer, prices
        self.needs_head_input = offer.kind == HEADS

    def begin(self, roots, memory, memory_lengths, draft_inputs=None, cross_keys_values=None):
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
    """A decoder with a price list.

    Args:
        decoder: Does the work.
        prices: Of everything.
        error: Size of the noise in calls with several nodes.
    """

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


def make_task(prices: Prices, beam_size: int | None = None, seed: int = 0, **options) -> Task:
    """Two utterances with one memory; greedy search, or beam search over the decoder alone.

    Args:
        prices: Of everything.
        beam_size: None for greedy search.
        seed: Of the decoder.
        options: ``error`` of ``ChargedDecoder``, ``rounding``, and those of ``SearchOptions``.
    """
    rounding, error = options.pop("rounding", False), options.pop("error", 0.0)
    memory, lengths = random_memory(seed, [9])
    module = tiny_decoder(seed, "none")
    decoder, say = ChargedDecoder(build_runtime(module), prices, error), foresight(module, memory)
    drafters = {
        name: Drafter(name, offer.kind, {None: ChargedProposer(say, offer, prices)})
        for name, offer in prices.offers.items()
    }
    constraints = build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    if beam_size is None:
        search = GreedySearch(decoder, AcceptanceRule(exact), constraints)
    else:
        search = BeamSearch(decoder, {}, None, {"decoder": 1.0}, beam_size, constraints)
    readings = {name: DraftReading(None, offer.encoder) for name, offer in prices.offers.items()}
    inputs = memory, lengths, torch.tensor([[EOS]]), 0.09, 0.5, readings
    batches = [HeldOutBatch([key], *inputs) for key in ("a", "b")]
    options = SearchOptions(search="greedy" if beam_size is None else "beam", **options)
    limits = LengthLimits(maxlenratio=-10)
    return Task(search, options, drafters, batches, limits, 1, prices, rounding)
