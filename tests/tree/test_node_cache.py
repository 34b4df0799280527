"""The node cache against lists of rows."""

import random

import torch
from cases import combinations

from espnet_medusa.tree.node_cache import NodeCache

LAYERS, NUM_HEADS, HEAD_SIZE = 3, 2, 4
KIND = NUM_HEADS, HEAD_SIZE, torch.float32, torch.device("cpu")


class PlainCache:
    def __init__(self, num_utterances):
        self.rows = [[[] for _ in range(num_utterances)] for _ in range(LAYERS)]

    def write(self, layer, keys_values):
        for known, new in zip(self.rows[layer], keys_values, strict=True):
            known += new

    def keep(self, slots):
        width = max(map(len, slots))
        for layer in self.rows:
            for utterance, kept in enumerate(slots):
                padding = [None] * (width - len(kept))  # arbitrary contents
                layer[utterance] = [layer[utterance][slot] for slot in kept] + padding

    def select(self, utterances):
        self.rows = [[layer[utterance] for utterance in utterances] for layer in self.rows]

    def assert_same(self, layer, keys_values):
        for known, rows in zip(self.rows[layer], keys_values, strict=True):
            assert len(known) == len(rows)
            for expected, row in zip(known, rows, strict=True):
                assert expected is None or torch.equal(expected, row)


def write(cache, plain, generator, num_utterances, num_new):
    cache.reserve(num_new)
    for layer in range(LAYERS):
        new = torch.randn((num_utterances, num_new, 2, NUM_HEADS, HEAD_SIZE), generator=generator)
        written = cache.write(layer, new)
        plain.write(layer, new)
        assert written.shape == (num_utterances, cache.num_nodes + num_new, 2, NUM_HEADS, HEAD_SIZE)
        plain.assert_same(layer, written)
    cache.commit(num_new)


def random_kept(rng, num_nodes):
    """Ascending slots; none, some or all of them move."""
    first = rng.choice([0, 0, rng.randrange(num_nodes)])
    front = [*range(rng.choice([0, rng.randrange(num_nodes)]))] if first == 0 else []
    rest = range(max(first, len(front)), num_nodes)
    return front + sorted(rng.sample(rest, rng.randint(0, len(rest))))


@combinations(seed=range(60))
def test_random_operations(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    num_utterances = rng.randint(1, 4)
    cache = NodeCache(LAYERS, num_utterances, *KIND, capacity=rng.choice([1, 4, 64]))
    plain = PlainCache(num_utterances)
    for _ in range(6):
        write(cache, plain, generator, num_utterances, rng.randint(1, 9))
        slots = [random_kept(rng, cache.num_nodes) for _ in range(num_utterances)]
        if max(map(len, slots)) > 0:
            cache.keep(slots)
            plain.keep(slots)
            assert cache.num_nodes == max(map(len, slots))
        if num_utterances > 1 and rng.random() < 0.3:
            num_utterances -= 1
            going = rng.sample(range(num_utterances + 1), num_utterances)
            cache.select(going)
            plain.select(going)
        for layer in range(LAYERS):
            plain.assert_same(layer, cache.slots[layer, :, : cache.num_nodes])


def test_the_cache_grows_when_needed():
    cache = NodeCache(1, 2, *KIND, capacity=8)
    place = cache.slots.data_ptr()
    cache.reserve(8)
    assert cache.capacity == 8 and cache.slots.data_ptr() == place
    cache.commit(8)
    cache.reserve(1)
    assert cache.capacity == 16
    cache.reserve(100)
    assert cache.capacity == 108


def test_slots_that_stay_are_not_copied():
    cache = NodeCache(2, 2, *KIND)
    cache.commit(10)
    before = cache.slots._version
    cache.keep([[*range(7)], [*range(5)]])
    assert (cache.num_nodes, cache.slots._version) == (7, before)
