"""Trees that grow at random, each node held against the trained module's forward of its path."""

import torch
from tiny import VOCAB_SIZE

from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.tree.token_tree import ROOT

CLOSE = {"rtol": 0.0, "atol": 1e-5}


class Grown:
    """Trees under way, and which tokens their nodes have: the forward of a path is the oracle.

    Args:
        memory: (U, S, D).
        lengths: (U,).
        options: Of ``start``.
    """

    def __init__(self, decoder, memory, lengths, **options):
        self.decoder, self.runtime = decoder, build_runtime(decoder)
        self.memory, self.lengths = memory, lengths
        self.state = self.runtime.start(memory, lengths, **options)
        self.tokens = [[] for _ in lengths]  # by slot

    def extend(self, tokens, parents):
        """``extend``, and where each packed row belongs: (utterance, slot)."""
        first = self.state.num_nodes
        outputs = self.runtime.extend(self.state, tokens, parents)
        places = [(row, first + new) for row, some in enumerate(tokens) for new in range(len(some))]
        for known, new in zip(self.tokens, tokens, strict=True):
            known += [*new, *[None] * (self.state.num_nodes - first - len(new))]
        return outputs, places

    def extend_and_check(self, tokens, parents):
        """``extend``; each row must be what the trained module says of its path."""
        outputs, places = self.extend(tokens, parents)
        assert len(outputs.hidden) == len(outputs.head_input) == len(places)
        for place, hidden, head_input in zip(
            places, outputs.hidden, outputs.head_input, strict=True
        ):
            expected = self.expected(*place)
            torch.testing.assert_close(hidden, expected.hidden[0, -1], **CLOSE)
            torch.testing.assert_close(head_input, expected.head_input[0, -1], **CLOSE)
            expected = self.decoder.logits(expected.hidden[0, -1])
            torch.testing.assert_close(self.runtime.logits(hidden[None])[0], expected, **CLOSE)

    def expected(self, row, slot):
        """The trained module's hidden states of a node's path, without padding or batch."""
        path = [self.tokens[row][node] for node in self.state.trees[row].path(slot)]
        frames = self.lengths[row : row + 1]
        return self.decoder.hidden_states(
            self.memory[row : row + 1, : int(frames)], frames, torch.tensor([path])
        )

    def alive(self, row):
        """Slots that are no padding."""
        return [slot for slot, token in enumerate(self.tokens[row]) if token is not None]

    def keep(self, slots):
        self.runtime.keep(self.state, slots)
        self.tokens = [
            [known[slot] for slot in kept] + [None] * (self.state.num_nodes - len(kept))
            for known, kept in zip(self.tokens, slots, strict=True)
        ]

    def select(self, rows):
        self.runtime.select(self.state, rows)
        self.tokens = [self.tokens[row] for row in rows]
        self.memory, self.lengths = self.memory[rows], self.lengths[rows]


def random_nodes(rng, grown, sizes, roots=False):
    """Tokens and parents of new nodes, anywhere in the trees."""
    tokens, parents = [], []
    for row, size in enumerate(sizes):
        old, first = grown.alive(row), grown.state.num_nodes
        chosen = []
        for new in range(size):
            options = [*old, *range(first, first + new)]
            chosen.append(rng.choice([*options, ROOT] if roots or not options else options))
        parents.append(chosen)
        tokens.append([rng.randrange(VOCAB_SIZE) for _ in range(size)])
    return tokens, parents


def some_subtrees(rng, grown):
    """Some paths of each row: what searches keep."""
    kept = []
    for row, tree in enumerate(grown.state.trees):
        alive = grown.alive(row)
        tips = rng.sample(alive, min(2, len(alive)))
        kept.append(sorted({slot for tip in tips for slot in tree.path(tip)}))
    return kept


def grow_raggedly(rng, grown):
    """Four utterances with their own numbers of new nodes, each checked; they keep some, and leave.

    One is left at the end.
    """
    for sizes in ([1, 7, 3, 1], [7, 1, 1, 4], [2, 2, 2, 2]):
        grown.extend_and_check(*random_nodes(rng, grown, sizes))
        grown.keep(some_subtrees(rng, grown))
    grown.select([3, 0])
    grown.extend_and_check(*random_nodes(rng, grown, [1, 7]))
    grown.keep(some_subtrees(rng, grown))
    grown.select([1])
    grown.extend_and_check(*random_nodes(rng, grown, [5]))
