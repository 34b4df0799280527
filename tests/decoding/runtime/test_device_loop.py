"""Greedy search with one graph per iteration equals the general loop."""

import random
from collections import Counter

import pytest
import torch
from cases import cases, combinations
from chain_loops import (
    FIRST_TIME,
    VOCAB_SIZE,
    RandomDepths,
    decode_both_ways,
    random_batch,
    random_decoder,
    random_search,
)
from pretended_cuda import pretended_cuda, tensors_of
from tiny import EOS, random_encoder_out, tiny_decoder
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from espnet_medusa.decoding.runtime import cuda_graph, graph_storage
from espnet_medusa.decoding.runtime.device_loop import rows_that_stay
from espnet_medusa.decoding.runtime.graph import Replayed
from espnet_medusa.decoding.runtime.loop_graphs import CALLS_PER_READ, LoopGraphs
from espnet_medusa.decoding.runtime.precision import Precision
from espnet_medusa.decoding.search.acceptance import AcceptanceRule, exact
from espnet_medusa.decoding.search.constraints import build_constraints
from espnet_medusa.decoding.search.drafting.auto_depth import AutoDepth
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions
from espnet_medusa.decoding.search.timestamps import build_timestamp_rules
from espnet_medusa.decoding.tree.chains import ChainRules
from espnet_medusa.decoding.tree.depth_plan import DepthPlan

BEST_ONLY = AcceptanceRule(exact, best_only=True)
# Calls with other numbers of nodes may round differently.
CLOSE = {"rel": 1e-5, "abs": 1e-5}


def graph_runtime(module):
    return cuda_graph.CudaGraphWhisperRuntime(module, Precision(torch.float32))


def assert_same(found, expected, counted=True):
    """``counted``: statistics are the same, too."""
    (rows, asked), (expected_rows, expected_asked) = found, expected
    assert asked == expected_asked
    for (counts, *numbers), (expected_counts, *expected_numbers) in zip(
        rows, expected_rows, strict=True
    ):
        assert (counts == expected_counts) if counted else (counts[:2] == expected_counts[:2])
        assert numbers == pytest.approx(expected_numbers, **CLOSE)


@pytest.mark.parametrize("seed", range(40))
def test_the_same_as_the_general_loop(seed, device="cpu", most=(1, 2, 7, 30, 55, 140)):
    """Twice with the same graphs: the second batch begins with other state."""
    rng = random.Random(seed)
    runtime = graph_runtime(random_decoder(rng, seed).to(device))
    search = random_search(rng, runtime, device, "float32")
    for batch_seed in (seed, seed + 1000):
        count = rng.choice([rng.randint(1, 5), rng.randint(6, 12)])
        batch, asked = random_batch(rng, batch_seed, search, most, device, count)
        together = rng.choice([None, rng.randint(1, 8)])  # the others wait
        # Depths change with fewer utterances and in trials, here only between two reads.
        changes = isinstance(search.planner.shape.lookahead, RandomDepths)
        found = decode_both_ways(search, batch, asked, together)
        assert_same(*found, counted=not changes)


def test_waiting_utterances_take_free_rows(monkeypatch):
    """Few calls have free rows, and each new text begins when an earlier one has ended."""
    runtime, rules = graph_runtime(tiny_decoder(0, vocab_size=VOCAB_SIZE)), SearchOptions()
    rules = build_constraints(rules, VOCAB_SIZE, EOS)
    search, counts = greedy_search(runtime, BEST_ONLY, rules), []
    iterate = LoopGraphs.iterate

    def counted(self, *given):
        counts.append(len(self.nodes))
        iterate(self, *given)

    monkeypatch.setattr(LoopGraphs, "iterate", counted)
    lengths = [41, 9, 9, 9, 9, 9, 9, 9, 9, 9]
    limits = [LengthLimits(-length, -length) for length in lengths]
    encoded, prompts = random_encoder_out(0, [7] * 10), [torch.tensor([3])] * 10
    assert search.queues
    alone = [search(*(part[row : row + 1] for part in encoded), prompts[:1], limits[row : row + 1])
             for row in range(10)]  # fmt: skip
    counts.clear()
    states = search(*encoded, prompts, limits, together=4)
    assert [state.tokens for state in states] == [state.tokens for (state,) in alone]
    assert [state.statistics.decoder_calls for state in states] == lengths
    # Three times three short texts beside the long one, and what is left of it.
    assert counts == [4] * 24 + [1] * 16
    assert {len(storage.encoder_out_mask) for storage in runtime.storages.values()} == {1, 4}


@cases(
    ([1, 1, 1, 1], [0, 1, 2, 3]), ([1, 0, 1], [0, 1, 2]), ([1, 0, 0, 1], [0, 3]),
    ([0, 0, 0, 1], [3]), ([0, 0, 1], [2]), ([1, 1, 0, 0, 0, 0, 0], [0, 1]), ([0], [0]),
)  # fmt: skip
def test_rows_leave_when_half_of_them_have_ended(running, expected):
    assert rows_that_stay([*map(bool, running)]) == expected


def test_depths_and_rows_change_between_reads():
    rng = random.Random(3)
    runtime = graph_runtime(random_decoder(rng, 3))
    lookahead = AutoDepth(4, range(5))
    search = greedy_search(
        runtime, BEST_ONLY, build_constraints(SearchOptions(), VOCAB_SIZE, EOS),
        runtime.proposer(precision="float32"), DraftShape(4, lookahead=lookahead),
    )  # fmt: skip
    plan, lengths = DepthPlan([1, 2, 3, 4], trial=0, trial_calls=2), [5, 90, 40, 60]
    limits = [LengthLimits(-length, -length) for length in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookahead, "plan", lambda utterances: plan)
        states = search(*random_encoder_out(3, [9] * 4), [torch.tensor([3])] * 4, limits)
    assert [len(state.tokens) for state in states] == lengths
    reads = [call[:2] for call in plan.calls[::CALLS_PER_READ]]
    assert reads[0][1] == 0, "the trial"
    assert all(running == depth for running, depth in reads[1:])
    assert {running for running, _ in reads} == {1, 2, 3, 4} or reads[0][0] == 3
    (storage,) = runtime.storages.values()
    assert {key[0] for key in storage.loops} == {4, 2, 1}, "rows of graphs"


def test_rules_of_the_same_shape_share_graphs():
    runtime = graph_runtime(random_decoder(random.Random(0), 0))
    proposer, found = runtime.proposer(precision="float32"), []
    for suppressed in ([0, 1], [2, 3], [0, 1]):
        rules = build_constraints(SearchOptions(suppress_tokens=suppressed), VOCAB_SIZE, EOS)
        search = greedy_search(runtime, BEST_ONLY, rules, proposer, DraftShape(4))
        batch, asked = random_batch(random.Random(1), 1, search)
        found.append(decode_both_ways(search, batch, asked))
        assert_same(*found[-1])
    assert found[0] == found[2] != found[1]
    (storage,) = runtime.storages.values()
    counts = [count for count, *_ in storage.loops]
    assert len(counts) == len({*counts}), "one for each number of rows"


@pytest.mark.parametrize("seed", range(4))
def test_the_same_on_a_mock_gpu(seed):
    """The mock raises if a captured operation waits for the host."""
    with pretended_cuda() as gpu:
        test_the_same_as_the_general_loop(seed, "cuda:0", most=(3, 12))
    assert gpu.graphs
    waits = {place for place in gpu.waits if "loop" in place}
    assert waits <= {f"decoding/runtime/loop_graphs.py: {name}" for name in ("read", "__init__")}


class OnDevice(TorchDispatchMode):
    """Fails if an operation has operands or results in main memory."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        assert all(part.is_cuda for part in tensors_of((args, kwargs, results))), function
        return results


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a build with CUDA")
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@combinations(depth=[0, 4], rules=["none", "limited", "timestamps"])
def test_an_iteration_never_waits_for_a_gpu(depth, rules, monkeypatch):
    """Fake tensors have no values: to read one, or a shape that depends on one, is an error."""
    monkeypatch.setattr(graph_storage, "padding_mask", lambda *_: None)  # reads the lengths
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        runtime = graph_runtime(tiny_decoder(0, "attending", vocab_size=VOCAB_SIZE))
        heads = runtime.proposer(torch.arange(8)).heads if depth else None
        state = runtime.start(torch.randn(2, 9, 32), torch.full((2,), 9), with_heads=depth > 0)
        blocked = None if rules == "none" else torch.zeros(2, VOCAB_SIZE, dtype=torch.bool)
        times = None
        if rules == "timestamps":
            times = build_timestamp_rules(FIRST_TIME, VOCAB_SIZE, 3)
        options = ChainRules(EOS, blocked, times, times is not None, depth, -3.0)
        graphs = LoopGraphs(runtime, state.storage, heads, options, rules == "limited", 2)
        with OnDevice():
            graphs._iterate(state, 64)


@combinations(depth=[0, 3], most=[1, 5, 23])
def test_one_graph_per_iteration_and_few_reads(depth, most, monkeypatch):
    calls = Counter()

    def count(owner, name):
        method = getattr(owner, name)

        def counted(self, *args):
            calls[name] += 1
            return method(self, *args)

        monkeypatch.setattr(owner, name, counted)

    for owner, name in ((Replayed, "run"), (LoopGraphs, "iterate"), (LoopGraphs, "read")):
        count(owner, name)
    module = tiny_decoder(0, "attending", 4, vocab_size=VOCAB_SIZE)
    runtime, rules = graph_runtime(module), build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    proposer = runtime.proposer(precision="float32")
    search = greedy_search(runtime, BEST_ONLY, rules, proposer, DraftShape(depth))
    states = search(*random_encoder_out(0, [9, 3]), [torch.tensor([1])] * 2, LengthLimits(-most))
    needed = max(state.statistics.decoder_calls for state in states)
    assert calls["read"] == 1 + -(-(needed - 1) // CALLS_PER_READ)
    assert needed - 1 <= calls["iterate"] < needed - 1 + CALLS_PER_READ
    assert calls["run"] == calls["iterate"] + 2, "the prompts, and their last tokens' results"


def test_deep_drafts_grow_the_cache():
    runtime = graph_runtime(random_decoder(random.Random(3), 3))
    rules = build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    proposer, capacities = runtime.proposer(precision="float32"), []
    for depth in (3, 500, 3):
        search = greedy_search(runtime, BEST_ONLY, rules, proposer, DraftShape(depth))
        batch, asked = random_batch(random.Random(5), 5, search, most=(9, 30))
        assert_same(*decode_both_ways(search, batch, asked))
        (storage,) = runtime.storages.values()
        capacities.append(storage.cache.capacity)
    assert capacities[0] < capacities[1] == capacities[2]


def test_a_search_after_an_interrupt():
    runtime = graph_runtime(random_decoder(random.Random(1), 1))
    rules = build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    proposer = runtime.proposer(precision="float32")
    search = greedy_search(runtime, BEST_ONLY, rules, proposer, DraftShape(4))
    (*audio, prompts, limits), asked = random_batch(random.Random(2), 2, search)

    def give_up(tokens):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(*audio, prompts, LengthLimits(-50, -40, give_up=give_up))
    assert_same(*decode_both_ways(search, (*audio, prompts, limits), asked))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("seed", range(8))
def test_the_same_on_a_gpu(seed):
    test_the_same_as_the_general_loop(seed, "cuda")
