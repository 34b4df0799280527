"""Random searches: how to draft, how many hypotheses, who drafts for what."""

import random

import torch

from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.ahead.lookahead import DraftShape


def greedy_shape(rng: random.Random, num_heads: int) -> DraftShape:
    """A chain, a tree that shapes itself, or a fixed one."""
    depth = rng.randint(0, num_heads)
    if depth and rng.random() < 0.3:
        depth = min(depth, 3)
        return DraftShape(depth, choices=tuple(rng.randint(1, 3) for _ in range(depth)))
    return DraftShape(depth, rng.choice([1, 1, 2, 4, 20]), rng.choice([None, None, 1, 3, 9]))


def beam_shape(rng: random.Random, decoder, beam_size: int) -> DraftShape:
    """How a trained module or a ``TreeDecoder`` drafts: from nothing to twice the beam's width."""
    decoder = build_runtime(decoder) if isinstance(decoder, torch.nn.Module) else decoder
    proposer = decoder.proposer()
    most = 0 if proposer is None else proposer.max_steps or 7
    return DraftShape(
        rng.randint(0, most),
        rng.choice([1, beam_size, 2 * beam_size]),
        rng.choice([None, None, 1, 6, 20]),
        left_out=frozenset(rng.choice([[], ["lm"]])),
    )


def random_nbest(rng: random.Random, beam_size: int) -> int | None:
    """All hypotheses that end, or some: one, a beam, more."""
    return rng.choice([None, rng.randint(1, beam_size), beam_size + 3])
