"""The token tree against lists of parents."""

import random

import numpy as np
from cases import combinations

from espnet_medusa.decoding.tree.token_tree import ROOT, TokenTree, visibility


def ancestors(parents: list[int], node: int) -> list[int]:
    path = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


@combinations(seed=range(20))
def test_random_growth_follows_the_parents(seed):
    rng = random.Random(seed)
    tree, parents = TokenTree(), []
    for _ in range(4):
        num_old = len(parents)
        new = [rng.randint(ROOT, num_old + place - 1) for place in range(rng.randint(1, 9))]
        tree.add(new)
        parents += new
        assert len(tree) == len(parents)
        for node in range(len(parents)):
            expected = ancestors(parents, node)
            assert tree.path(node) == expected
            assert tree.depth(node) == len(expected) - 1
            assert [slot for slot in range(len(tree)) if tree.visible[node] >> slot & 1] == expected


@combinations(seed=range(20))
def test_nodes_that_are_kept_keep_their_paths(seed):
    """With padding between steps, which the next step does not keep."""
    rng = random.Random(seed)
    tree, names = TokenTree(), []  # names follow the nodes through all renumbering
    paths = {}
    for step in range(5):
        for _ in range(rng.randint(1, 8)):
            parent = rng.choice([ROOT, *(slot for slot, name in enumerate(names) if name)])
            name = (step, len(tree))
            paths[name] = ([] if parent == ROOT else paths[names[parent]]) + [name]
            tree.add([parent])
            names.append(name)
        named = [slot for slot, name in enumerate(names) if name]
        tips = rng.sample(named, min(2, len(named)))
        kept = sorted({slot for tip in tips for slot in tree.path(tip)})
        tree.keep(kept)
        names = [names[slot] for slot in kept]
        for slot, name in enumerate(names):
            assert [names[node] for node in tree.path(slot)] == paths[name]
            assert tree.depth(slot) == len(paths[name]) - 1
        names += [None] * rng.randint(0, 3)
        tree.fill(len(names))


@combinations(seed=range(20))
def test_visibility_follows_paths(seed):
    rng = random.Random(seed)
    num_nodes = rng.choice([1, 7, 8, 9, 30, 64, 65, 103])
    trees = [TokenTree() for _ in range(rng.randint(1, 4))]
    for tree in trees:
        tree.add([rng.randint(ROOT, place - 1) for place in range(rng.randint(1, num_nodes))])
        tree.fill(num_nodes)
    first = rng.randint(0, num_nodes - 1)
    seen = visibility(trees, first)
    assert seen.shape == (len(trees), num_nodes - first, num_nodes) and seen.dtype == bool
    for tree, rows in zip(trees, seen, strict=True):
        for slot, row in enumerate(rows, start=first):
            assert np.flatnonzero(row).tolist() == tree.path(slot)
