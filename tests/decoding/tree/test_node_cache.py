"""The node cache against lists of rows."""

import random

import torch
from cases import combinations

from espnet_medusa.decoding.tree.node_cache import NodeCache

LAYERS, NUM_HEADS, HEAD_SIZE = 3, 2, 4
KIND = NUM_HEADS, HEAD_SIZE, torch.float32, torch.device("cpu")


def assert_same(plain, layer, keys_values):
    """Compare with lists of nodes (LAYERS, 2, heads, size) by utterance; None: any contents."""
    for known, rows in zip(plain, keys_values, strict=True):
        for expected, row in zip(known, rows, strict=True):
            assert expected is None or torch.equal(expected[layer], row)


def write(cache, plain, generator, num_new):
    shape = len(plain), num_new, LAYERS, 2, NUM_HEADS, HEAD_SIZE
    new = torch.randn(shape, generator=generator)
    for known, nodes in zip(plain, new, strict=True):
        known += nodes
    cache.reserve(num_new)
    for layer in range(LAYERS):
        assert_same(plain, layer, cache.write(layer, new[:, :, layer]))
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
    plain = [[] for _ in range(rng.randint(1, 4))]
    cache = NodeCache(LAYERS, len(plain), *KIND, capacity=rng.choice([1, 4, 64]))
    for _ in range(6):
        write(cache, plain, generator, rng.randint(1, 9))
        slots = [random_kept(rng, cache.num_nodes) for _ in plain]
        if (width := max(map(len, slots))) > 0:
            cache.keep(slots)
            for row, kept in enumerate(slots):
                plain[row] = [plain[row][slot] for slot in kept] + [None] * (width - len(kept))
            assert cache.num_nodes == width
        if len(plain) > 1 and rng.random() < 0.3:
            going = rng.sample(range(len(plain)), len(plain) - 1)
            cache.select(going)
            plain = [plain[row] for row in going]
        for layer in range(LAYERS):
            assert_same(plain, layer, cache.slots[layer, :, : cache.num_nodes])


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
