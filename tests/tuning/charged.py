"""A clock that moves only when a decoder or a surrogate does something, by a price list."""

from dataclasses import dataclass

import torch
from clairvoyant import PathDecoder, PathSurrogate, foresight
from tiny import EOS, VOCAB_SIZE, random_memory, tiny_decoder

from espnet_medusa.accept import AcceptanceRule, exact
from espnet_medusa.constraints import ConstraintOptions, build_constraints
from espnet_medusa.decoder.tree_decoder import NodeOutputs
from espnet_medusa.search.beam import BeamSearch, LengthLimits
from espnet_medusa.search.build import SearchOptions
from espnet_medusa.search.greedy import GreedySearch
from espnet_medusa.tuning.held_out import HeldOutBatch
from espnet_medusa.tuning.trial import Task


@dataclass
class Prices:
    """Seconds of things; ``spent`` is the time."""

    call: float = 1.0
    node: float = 0.01
    draft_row: float = 0.01
    spent: float = 0.0

    def now(self) -> float:
        return self.spent


class ChargedSurrogate(PathSurrogate):
    """Knows what the decoder will say, for a price.

    Args:
        say: As ``PathSurrogate``'s.
        prices: Of everything.
    """

    def __init__(self, say, prices: Prices):
        super().__init__(say)
        self.prices = prices

    def logits(self, states):
        self.prices.spent += self.prices.draft_row * len(states.paths)
        return super().logits(states)


class ChargedDecoder(PathDecoder):
    """A decoder with a price list.

    Args:
        decoder: Does the work.
        surrogate: Drafts.
        prices: Of everything.
        num_heads: What the decoder says that it has; without, nothing drafts.
        error: Size of the noise in calls with several nodes.
    """

    def __init__(self, decoder, surrogate, prices: Prices, num_heads=4, error=0.0):
        super().__init__(decoder, surrogate if num_heads else None)
        self.prices, self.heads, self.error = prices, num_heads, error

    @property
    def num_heads(self):
        return self.heads

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
        options: Of ``ChargedDecoder``, ``SearchOptions`` and ``rounding``.
    """
    rounding = options.pop("rounding", False)
    model = {name: options.pop(name) for name in ("num_heads", "error") if name in options}
    memory, lengths = random_memory(seed, [9])
    module = tiny_decoder(seed, "none")
    surrogate = ChargedSurrogate(foresight(module, memory), prices)
    decoder = ChargedDecoder(module.runtime(), surrogate, prices, **model)
    constraints = build_constraints(ConstraintOptions(), VOCAB_SIZE, EOS)
    if beam_size is None:
        search = GreedySearch(decoder, AcceptanceRule(exact), constraints)
    else:
        search = BeamSearch(decoder, {}, None, {"decoder": 1.0}, beam_size, constraints)
    prompt = torch.tensor([[EOS]])
    batches = [HeldOutBatch([key], memory, lengths, prompt, 0.09, 0.0) for key in ("a", "b")]
    kind = "greedy" if beam_size is None else "beam"
    limits = LengthLimits(maxlenratio=-16)
    return Task(search, SearchOptions(search=kind, **options), batches, limits, 1, prices, rounding)
