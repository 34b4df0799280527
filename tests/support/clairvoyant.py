"""A proposer that is told what to say behind each path, so that drafts need no luck."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.tree.proposer import HeadsProposer, Proposer
from espnet_medusa.tree.tree_decoder import NodeOutputs, TreeDecoder

Path = tuple[int, ...]  # tokens, prompt included


class PathDecoder(TreeDecoder):
    """A decoder whose ``head_input`` is the path itself: its tokens, -1 behind them."""

    heads_trained = True

    def __init__(self, decoder: TreeDecoder, proposer: Proposer | None = None):
        self.decoder, self.paths = decoder, proposer

    def max_depth(self, frames):
        return self.decoder.max_depth(frames)

    @property
    def num_heads(self):
        return self.decoder.num_heads

    def proposer(self, vocabulary=None, precision=None, verified=False):
        return self.paths

    def start(self, memory, memory_lengths, with_heads=True):
        state = self.decoder.start(memory, memory_lengths, with_heads)
        state.tokens = [[] for _ in state.trees]  # by slot
        return state

    def extend(self, state, tokens, parents):
        first = state.num_nodes
        outputs = self.decoder.extend(state, tokens, parents)
        paths = []
        for tree, known, new in zip(state.trees, state.tokens, tokens, strict=True):
            known += new
            paths += [
                [known[node] for node in tree.path(slot)] for slot in range(first, len(known))
            ]
            known += [None] * (state.num_nodes - len(known))
        padded = [path + [-1] * (self.decoder.max_depth(0) - len(path)) for path in paths]
        return NodeOutputs(outputs.hidden, torch.tensor(padded))

    def logits(self, hidden):
        return self.decoder.logits(hidden)

    def keep(self, state, slots):
        self.decoder.keep(state, slots)
        state.tokens = [
            [known[slot] for slot in kept] + [None] * (state.num_nodes - len(kept))
            for known, kept in zip(state.tokens, slots, strict=True)
        ]

    def select(self, state, utterances):
        self.decoder.select(state, utterances)
        state.tokens = [state.tokens[row] for row in utterances]


@dataclass(frozen=True)
class PathStates:
    """R paths."""

    paths: list[Path]

    def select(self, rows):
        return PathStates([self.paths[row] for row in rows.tolist()])

    def join(self, others):
        return PathStates(self.paths + others.paths)


class PathProposer(HeadsProposer):
    """Drafts behind paths as it is told.

    Args:
        say: Logits (V',) for the token behind a path.
        vocabulary: As ``Proposer``'s.
    """

    max_steps = None

    def __init__(self, say: Callable[[Path], torch.Tensor], vocabulary: torch.Tensor | None = None):
        self.say, self.vocabulary = say, vocabulary

    def start_from(self, head_input):
        return PathStates([tuple(t for t in row if t >= 0) for row in head_input.tolist()])

    def advance(self, states, tokens):
        pairs = zip(states.paths, tokens.tolist(), strict=True)
        return PathStates([(*path, token) for path, token in pairs])

    def logits(self, states):
        return torch.stack([self.say(path) for path in states.paths])


def foresight(decoder, memory: torch.Tensor) -> Callable[[Path], torch.Tensor]:
    """What the trained module itself will say behind each path of one memory (1, S, D)."""
    known, frames = {}, torch.tensor([memory.size(1)])

    def say(path: Path) -> torch.Tensor:
        if path not in known:
            size = torch.tensor([len(path)])
            known[path] = decoder(memory, frames, torch.tensor([path]), size)[0][0, -1]
        return known[path]

    return say


def drafting(decoder, memory, seed):
    """The decoder with its heads, or with what foresees it and is wrong now and then."""
    runtime = build_runtime(decoder)
    if len(memory) > 1 or seed % 2:
        return runtime
    say, rng = foresight(decoder, memory), random.Random(seed)
    return PathDecoder(
        runtime, PathProposer(lambda path: say(path).roll(int(rng.random() < 0.1), dims=0))
    )
