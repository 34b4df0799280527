"""Calls of fixed shapes, as in CUDA graphs, against calls of any shape."""

import math

import pytest
import torch
from cases import combinations
from grown_trees import best_tokens_of_steps, states_after
from pretended_cuda import pretended_cuda
from searches import build_search, run_search
from tiny import EOS, HIDDEN_SIZE, VOCAB_SIZE, plain_greedy, random_encoder_out, tiny_decoder

from espnet_medusa.decoding.runtime import cuda_graph, graph_storage
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.cross_attention import WhisperRuntime
from espnet_medusa.decoding.runtime.layer import as_heads, attend, attend_as_heads
from espnet_medusa.decoding.runtime.precision import Precision
from espnet_medusa.decoding.search.search_options import SearchOptions
from espnet_medusa.decoding.tree.token_tree import ROOT, chain_parents

LENGTHS = [20, 9, 1]
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, NO_CUDA])]


def search_twice(runtime, options: SearchOptions, device: str):
    """Texts, and calls and nodes, of each utterance; the second search reuses storage and calls."""
    search, results = build_search(runtime, options, device=device), []
    for _ in range(2):
        states = run_search(
            search, *(part.to(device) for part in random_encoder_out(1, LENGTHS)), 30
        )
        counts = [(state.statistics.decoder_calls, state.statistics.nodes) for state in states]
        results.append(([[best.tokens for best in state.n_best] for state in states], counts))
    assert results[0] == results[1]
    return results[0]


@combinations(device=DEVICES, search=["greedy", "beam"])
@combinations(heads=["linear", "block", "recurrent", "attending"], seed=range(2))
def test_searches_equal_those_of_any_shape(seed, heads, search, device):
    decoder = tiny_decoder(seed, heads)
    # By default heads on a CPU draft in 8 bits, which changes some drafts.
    options = SearchOptions(search=search, draft_width=2, draft_precision="float32")
    expected = search_twice(build_runtime(decoder), options, "cpu")
    runtime = cuda_graph.CudaGraphWhisperRuntime(decoder.to(device), Precision(torch.float32))
    assert search_twice(runtime, options, device) == expected
    assert len(runtime.storages) == 1


@pytest.mark.parametrize(("heads", "search"), [("block", "beam"), ("attending", "greedy")])
def test_searches_on_a_mock_gpu(heads, search):
    with pretended_cuda() as gpu:
        test_searches_equal_those_of_any_shape(0, heads, search, "cuda:0")
    fast = "decoding/runtime/cuda_graph", "decoding/tree/node_cache"
    assert gpu.graphs and not any(place.startswith(fast) for place in gpu.waits)


@combinations(device=DEVICES, frames=[[7, 5], [7, 7]])
def test_outputs_of_a_growing_storage(device, frames):
    decoder = tiny_decoder(0, "block").to(device)
    encoder_out, lengths = (part.to(device) for part in random_encoder_out(0, frames))
    fixed = cuda_graph.CudaGraphWhisperRuntime(decoder, Precision(torch.float32))
    free = WhisperRuntime(decoder, Precision(torch.float32))
    states = fixed.start(encoder_out, lengths), free.start(encoder_out, lengths)
    capacity, first = states[0].cache.capacity, 0
    while first <= capacity:  # siblings of one node, which need no further positions
        sizes = [90, 3]
        tokens = [[(first + place) % VOCAB_SIZE for place in range(size)] for size in sizes]
        parents = [[0 if first else ROOT] * size for size in sizes]
        pairs = zip((fixed, free), states, strict=True)
        outputs, expected = (runtime.extend(state, tokens, parents) for runtime, state in pairs)
        torch.testing.assert_close(outputs.hidden, expected.hidden, rtol=0, atol=1e-5)
        torch.testing.assert_close(outputs.head_input, expected.head_input, rtol=0, atol=1e-5)
        first = states[0].num_nodes
    assert states[0].cache.capacity > capacity


@combinations(device=DEVICES, seed=range(3), least=[-math.inf, -3.0])
@combinations(vocabulary=[None, [0, 2, 3, 5, 8]])
def test_chains_of_attending_heads_are_the_steps_one_by_one(device, seed, least, vocabulary):
    """Also of some utterances, in any order, and shorter than the captured chain."""
    decoder = tiny_decoder(seed, "attending").to(device)
    runtime = cuda_graph.CudaGraphWhisperRuntime(decoder, Precision(torch.float32))
    tokens = torch.tensor([3, 1, 2, 5], device=device)
    vocabulary = vocabulary and torch.tensor(vocabulary, device=device)
    hidden, encoder_out, lengths = (
        torch.randn(4, HIDDEN_SIZE),
        *random_encoder_out(seed, [6, 3, 9, 1]),
    )
    inputs = (part.to(device) for part in (hidden, encoder_out, lengths))
    proposer, states = states_after(runtime, *inputs, [0, 1, 2, 3], vocabulary)
    for rows, depth in (([0, 1, 2, 3], 5), ([0, 1, 2, 3], 2), ([2, 0], 4), ([1], 9)):
        some = torch.tensor(rows, device=device)
        chosen = states.select(some), tokens[some]
        expected, _ = best_tokens_of_steps(proposer, proposer.append(*chosen), depth, least)
        drafted, after = states.select(some), proposer.append(*chosen)
        for chain in (
            proposer.chain(drafted, depth, least, tokens[some]),
            proposer.chain(after, depth, least),
        ):
            assert torch.equal(chain.to(device), expected)
    twice = states.select(torch.tensor([2, 2], device=device))
    assert proposer.chain(twice, 4, least) is None, "one row per utterance"


def test_two_states_at_once_do_not_share_a_storage():
    decoder = tiny_decoder(1, "none")
    runtime = cuda_graph.CudaGraphWhisperRuntime(decoder, Precision(torch.float32))
    encoder_outs = [torch.randn(1, 6, HIDDEN_SIZE) for _ in range(2)]
    states = [runtime.start(encoder_out, torch.tensor([6])) for encoder_out in encoder_outs]
    for state in states:
        runtime.extend(state, [[1, 2]], [chain_parents(2, ROOT, 0)])
    for encoder_out, state in zip(encoder_outs, states, strict=True):
        outputs = runtime.extend(state, [[3]], [[1]])
        expected = decoder.hidden_states(encoder_out, torch.tensor([6]), torch.tensor([[1, 2, 3]]))
        torch.testing.assert_close(outputs.hidden[0], expected.hidden[0, -1], rtol=0, atol=1e-5)


def test_idle_storages_are_freed_above_a_limit(monkeypatch):
    runtime = cuda_graph.CudaGraphWhisperRuntime(tiny_decoder(1, "none"), Precision(torch.float32))

    def start(utterances):
        encoder_out = torch.randn(utterances, 6, HIDDEN_SIZE)
        return runtime.start(encoder_out, torch.tensor([6] * utterances))

    def sizes():
        return [key[0] for key in runtime.storages]

    for utterances in (1, 2, 1, 3):
        start(utterances)
    assert sizes() == [2, 1, 3], "least recently used first"
    limit = sum(storage.num_bytes for storage in [*runtime.storages.values()][1:])
    monkeypatch.setattr(cuda_graph, "IDLE_BYTES", limit)
    with_graphs = start(4)
    assert sizes() == [1, 3, 4]
    monkeypatch.setattr(cuda_graph, "IDLE_BYTES", 0)
    start(5)
    assert sizes() == [4, 5] and not with_graphs.storage.idle, "storages in use are not freed"


def test_buckets_are_large_enough():
    for number in range(1, 700):
        assert graph_storage.bucket(number) >= number
        assert graph_storage.slot_bucket(number) >= number
    buckets = {graph_storage.bucket(number) for number in range(1, 257)}
    assert buckets == {*graph_storage.NODE_BUCKETS}


@combinations(device=DEVICES, queries=[1, 2, 7], masked=[False, True])
def test_queries_as_heads_attend_alike(device, queries, masked):
    """On an H100, ``attend`` itself takes this way in half precision."""
    dtype = torch.float32 if device == "cpu" else torch.float16
    generator = torch.Generator().manual_seed(queries)
    shapes = (2, queries, 4, 8), (2, 20, 2, 4, 8)
    parts = (torch.randn(shape, generator=generator) for shape in shapes)
    tokens, encoder_out = (part.to(device, dtype) for part in parts)
    mask = torch.zeros(2, 1, 1, 20, device=device, dtype=dtype)
    mask[1, ..., 13:] = torch.finfo(dtype).min
    mask = mask if masked else None
    expected = attend(
        tokens.double(), encoder_out.double(), None if mask is None else mask.double()
    )
    keys_values = encoder_out.transpose(1, 3).unbind(2)
    close = {"rtol": 0, "atol": 1e-5 if device == "cpu" else 2e-3}
    heads = attend_as_heads(as_heads(tokens), *keys_values, mask)
    for result in (heads, attend(tokens, encoder_out, mask)):
        torch.testing.assert_close(result.double(), expected, **close)


@pytest.mark.cuda
@NO_CUDA
@combinations(precision=["float16", "bfloat16"])
def test_half_precision_on_cuda_is_close_to_plain_greedy(precision):
    decoder = tiny_decoder(2, "recurrent").cuda()
    options = SearchOptions(search="greedy", decoder_precision=precision)
    result = search_twice(build_runtime(decoder, precision), options, "cuda")
    decoder.cpu()
    encoder_out, _ = random_encoder_out(1, LENGTHS)
    texts, _ = result
    for row, length in enumerate(LENGTHS):
        expected, _, ended = plain_greedy(decoder, encoder_out[row : row + 1, :length], [EOS], 30)
        assert texts[row][0][:3] == [*expected, *[EOS] * ended][:3]
