"""Token tree against parents that are followed one by one."""

import random

import pytest
import torch

from espnet_medusa.tree import DEAD, ROOT, TokenTree, chain_parents


def ancestors(parents: list[int], node: int) -> set[int]:
    found = set()
    while node != ROOT:
        found.add(node)
        node = parents[node]
    return found


def assert_matches(tree: TokenTree, parents: list[list[int]]) -> None:
    for row, of_row in enumerate(parents):
        for node in range(len(of_row)):
            expected = ancestors(of_row, node)
            assert set(tree.path(row, node)) == expected
            assert int(tree.depths()[row, node]) == len(expected) - 1


@pytest.mark.parametrize("seed", range(20))
def test_random_growth_follows_the_parents(seed):
    rng = random.Random(seed)
    num_utterances = rng.randint(1, 3)
    tree = TokenTree.empty(num_utterances)
    parents = [[] for _ in range(num_utterances)]
    for _ in range(4):
        num_new, num_old = rng.randint(1, 9), tree.num_nodes
        new = [[rng.randint(ROOT, num_old + t - 1) for t in range(num_new)] for _ in parents]
        tree = tree.add(torch.zeros(num_utterances, num_new, dtype=torch.long), torch.tensor(new))
        for row, of_row in zip(parents, new, strict=True):
            row.extend(of_row)
        assert_matches(tree, parents)


def test_a_long_chain_sees_all_before_it():
    tree = TokenTree.empty(1)
    tree = tree.add(torch.arange(100)[None], chain_parents(1, 100, torch.tensor([ROOT]), 0))
    assert torch.equal(tree.visible[0], torch.ones(100, 100).tril().bool())


def test_keep_renumbers_and_dead_slots_are_seen_by_nobody():
    # Row 0: 0 - 1 - 2 and 0 - 3; row 1: 0 - 1 - 2 - 3.
    tree = TokenTree.empty(2).add(
        torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]]), torch.tensor([[-1, 0, 1, 0], [-1, 0, 1, 2]])
    )
    kept = tree.keep(torch.tensor([[0, 3, DEAD], [0, 1, 2]]))
    assert kept.tokens[0, :2].tolist() == [5, 8]
    assert kept.path(0, 1) == [0, 1]
    assert kept.path(1, 2) == [0, 1, 2]
    assert not kept.visible[0, 2].any() and not kept.visible[0, :, 2].any()


def test_select_keeps_rows_in_order():
    tree = TokenTree.empty(3).add(torch.tensor([[1], [2], [3]]), torch.full((3, 1), ROOT))
    assert tree.select(torch.tensor([2, 0])).tokens.flatten().tolist() == [3, 1]
