"""Greedy search with one graph per iteration equals the general loop."""

import random
from collections import Counter

import pytest
import torch
from cases import combinations
from chain_loops import VOCAB_SIZE, decode_both_ways, random_batch, random_search
from pretended_cuda import pretended_cuda
from tiny import tiny_decoder

from espnet_medusa.decoding.runtime import cuda_graph, loop_graphs
from espnet_medusa.decoding.runtime.graph import Replayed
from espnet_medusa.decoding.runtime.precision import Precision

# Calls with other numbers of nodes may round differently.
CLOSE = {"rel": 1e-5, "abs": 1e-5}


def graph_runtime(seed: int, num_heads: int, device="cpu"):
    module = tiny_decoder(seed, "attending", num_heads, vocab_size=VOCAB_SIZE).to(device)
    return cuda_graph.CudaGraphWhisperRuntime(module, Precision(torch.float32))


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
    runtime = graph_runtime(seed, rng.choice([1, 4, 10]), device)
    search = random_search(rng, runtime, device, "float32")
    for batch_seed in (seed, seed + 1000):
        batch, asked = random_batch(rng, batch_seed, search, most, device)
        assert_same(*decode_both_ways(search, batch, asked))
