"""Greedy search with one graph per iteration equals the general loop."""

import random

import pytest
import torch
from chain_loops import decode_both_ways, random_batch, random_decoder, random_search

from espnet_medusa.decoding.runtime import cuda_graph
from espnet_medusa.decoding.runtime.precision import Precision

# Calls with other numbers of nodes may round differently.
CLOSE = {"rel": 1e-5, "abs": 1e-5}


def graph_runtime(module, device="cpu"):
    return cuda_graph.CudaGraphWhisperRuntime(module.to(device), Precision(torch.float32))


def assert_same(found, expected):
    (rows, asked), (expected_rows, expected_asked) = found, expected
    assert asked == expected_asked
    for (counts, *numbers), (expected_counts, *expected_numbers) in zip(
        rows, expected_rows, strict=True
    ):
        assert counts == expected_counts
        assert numbers == pytest.approx(expected_numbers, **CLOSE)


@pytest.mark.parametrize("seed", range(40))
def test_the_same_as_the_general_loop(seed, device="cpu", most=(1, 2, 7, 30, 55)):
    """Twice with the same graphs: the second batch begins with other state."""
    rng = random.Random(seed)
    runtime = graph_runtime(random_decoder(rng, seed), device)
    search = random_search(rng, runtime, device, "float32")
    for batch_seed in (seed, seed + 1000):
        batch, asked = random_batch(rng, batch_seed, search, most, device)
        assert_same(*decode_both_ways(search, batch, asked))
