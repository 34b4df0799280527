"""A clock that moves only when a decoder or a surrogate does something, by a price list."""

from dataclasses import dataclass

import torch
from tiny import EOS, VOCAB_SIZE, random_memory, tiny_decoder

from espnet_medusa.accept import AcceptanceRule, exact
from espnet_medusa.constraints import ConstraintOptions, build_constraints
from espnet_medusa.decoder.tree_decoder import NodeOutputs, TreeDecoder
from espnet_medusa.draft.surrogate import Surrogate
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


class Clairvoyant(Surrogate):
    """Knows what the decoder will say, for a price."""

    max_steps = None

    def __init__(self, decoder, memory, prices, known):
        self.decoder, self.memory, self.prices = decoder, memory, prices
        self.known = known

    def start(self, prefixes):
        return [prefix.tokens() for prefix in prefixes]

    def advance(self, states, tokens):
        return [[*state, token] for state, token in zip(states, tokens, strict=True)]

    def logits(self, states):
        self.prices.spent += self.prices.draft_row * len(states)
        return torch.stack([self._logits(tuple(state)) for state in states])

    def _logits(self, state):
        if state not in self.known:
            tokens, length = torch.tensor([[EOS, *state]]), torch.tensor([self.memory.size(1)])
            size = torch.tensor([tokens.size(1)])
            self.known[state] = self.decoder(self.memory, length, tokens, size)[0][0, -1]
        return self.known[state]


class ChargedDecoder(TreeDecoder):
    """A tiny decoder with a price list and a surrogate that knows it."""

    max_depth, heads_trained = 64, True

    def __init__(self, decoder, memory, prices, num_heads=4, error=0.0):
        self.decoder, self.memory, self.prices = decoder, memory, prices
        self.heads, self.error = num_heads, error
        self.clairvoyant = Clairvoyant(decoder, memory, prices, {})

    @property
    def num_heads(self):
        return self.heads

    def surrogate(self):
        return None if not self.heads else self.clairvoyant

    def start(self, *args, **options):
        return self.decoder.start(*args, **options)

    def extend(self, state, tokens, parents, *more):
        self.prices.spent += self.prices.call + self.prices.node * tokens.numel()
        outputs = self.decoder.extend(state, tokens, parents, *more)
        noise = self.error * torch.randn(outputs.hidden.shape, generator=torch.Generator())
        return NodeOutputs(outputs.hidden + (tokens.size(1) > 1) * noise, outputs.head_input)

    def logits(self, hidden):
        return self.decoder.logits(hidden)


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
    decoder = ChargedDecoder(tiny_decoder(seed, "none"), memory, prices, **model)
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
