"""Traces of searches: the same result, complete, and the decoder's own preferences."""

import random
from dataclasses import asdict, replace

import pytest
import torch
from cases import combinations
from scripted import foresight
from searches import COUNTS, PROMPT, beam_shape, drafted_by, greedy_shape, our_greedy, our_search
from threshold_oracle import Setting
from tiny import EOS, bounds, random_encoder_out, utterances

from espnet_medusa.decoding.search.trace import DECODER, DRAFT


def random_case(seed, drafter):
    rng = random.Random(f"{seed} {drafter}")
    encoder_out, lengths = random_encoder_out(seed, [rng.randint(2, 9) for _ in range(3)])
    limits = bounds([rng.choice([1, 4, 20]) for _ in lengths])
    return rng, encoder_out, lengths, limits


def run_twice(search, encoder_out, lengths, limits):
    """Return the states with trace; without, the results are the same."""
    prompts = torch.tensor([PROMPT] * len(lengths))
    traced, plain = (
        search(encoder_out, lengths, prompts, [replace(one, traced=traced) for one in limits])
        for traced in (True, False)
    )
    for state, other in zip(traced, plain, strict=True):
        assert list(map(asdict, state.n_best)) == list(map(asdict, other.n_best))
        for name in COUNTS:
            assert getattr(state.statistics, name) == getattr(other.statistics, name), name
        assert other.trace is None
    return traced


def paths_of(result):
    """Return the tokens after the prompt of each node, in order."""
    paths = []
    for parent, token, *_ in (node for call in result["calls"] for node in call["nodes"]):
        paths.append([] if parent < 0 else [*paths[parent], token])
    return paths


def assert_complete(state):
    """Check what every trace has, and return its result and the paths of its nodes."""
    result, counts = state.trace.result, state.statistics
    assert len(result["calls"]) == counts.decoder_calls
    nodes = [node for call in result["calls"] for node in call["nodes"]]
    ends = [node for node in nodes if node[1] == EOS and node[0] >= 0]
    evaluated = counts.nodes - len(PROMPT) + 1
    assert len(nodes) - len(ends) <= evaluated <= len(nodes)
    written = [token for token, *_ in result["tokens"]]  # no end symbol at the maximum length
    assert state.n_best[0].tokens in (written, [*written, EOS])
    paths, tokens = paths_of(result), state.n_best[0].tokens
    for length, (_, call, by, step) in enumerate(result["tokens"], start=1):
        before, after = result["calls"][call]["steps"]
        assert before < length <= after
        assert step == (length - before if by == DRAFT else 0)
        here = [n for c in result["calls"][: call + 1] for n in c["nodes"]]
        rows = [row for row, path in zip(here, paths, strict=False) if path == tokens[:length]]
        assert any(row[2] == step for row in rows) or by == DECODER
    seconds = [call["drafting_ms"] + call["verification_ms"] for call in result["calls"]]
    spent = (result["start_ms"] + sum(seconds)) / 1000
    assert 0 <= spent <= counts.decoder_seconds + 1e-6
    assert all(ms >= 0 for call in result["calls"] for ms in (call["drafting_ms"],))
    return result, paths


@combinations(drafter=["linear", "recurrent", "attending", "none"], seed=range(4))
def test_greedy_traces_have_the_argmax_after_each_node(seed, drafter):
    rng, encoder_out, lengths, limits = random_case(seed, drafter)
    decoder, runtime = drafted_by(seed, drafter, 0 if drafter == "none" else 4)
    shape = greedy_shape(rng, runtime.num_heads)
    search = our_greedy(runtime, shape)
    states = run_twice(search, encoder_out, lengths, limits)
    for state, alone in zip(states, utterances(encoder_out, lengths), strict=True):
        result, paths = assert_complete(state)
        accepted = sum(by == DRAFT for _, _, by, _ in result["tokens"])
        assert accepted == sum(state.statistics.accepted)
        if not shape.depth:
            expected = [(DECODER, call) for call in range(len(result["calls"]))]
            assert [(by, call) for _, call, by, _ in result["tokens"]] == expected
        nodes = [node for call in result["calls"] for node in call["nodes"]]
        logits_after = foresight(decoder, alone, [[*PROMPT, *state.tokens]])
        for (_, token, step, score, kept, following), path in zip(nodes, paths, strict=True):
            assert (score is None) == (step == 0 or not search.planner.scores_drafts)
            assert score is None or score <= 1e-4
            assert kept == (path == state.n_best[0].tokens[: len(path)])
            if following and (not path or token != EOS):
                logits = logits_after((*PROMPT, *path)).log_softmax(dim=-1)
                [(best, log_prob)] = following
                assert logits[best] == pytest.approx(float(logits.max()), abs=1e-4)
                assert log_prob == pytest.approx(float(logits[best]), abs=1e-4)


@combinations(weights=[{"decoder": 1.0}, {"decoder": 0.7, "ctc": 0.3}], seed=range(4))
def test_beam_traces_are_complete(seed, weights):
    rng, encoder_out, lengths, limits = random_case(seed, "beam")
    decoder, runtime = drafted_by(seed, "recurrent")
    shape = beam_shape(rng, runtime, 3)
    search = our_search(runtime, seed, weights, 3, shape)
    for state in run_twice(search, encoder_out, lengths, limits):
        result, _ = assert_complete(state)
        scores = [[score for _, score in node[5]] for c in result["calls"] for node in c["nodes"]]
        assert any(scores) and all(row == sorted(row, reverse=True) for row in scores)


@combinations(heads=["linear", "recurrent", "attending"], seed=range(4))
def test_unverified_drafts_have_the_number_of_their_head(seed, heads):
    _, encoder_out, lengths, limits = random_case(seed, heads)
    decoder, _ = drafted_by(seed, heads, 4)
    for state in run_twice(Setting(3, 0.2).search(decoder), encoder_out, lengths, limits):
        result, best = state.trace.result, state.n_best[0]
        assert [step for *_, step in result["tokens"]] == list(best.heads)
        calls = [call for _, call, _, _ in result["tokens"]]
        for (_, call, by, step), before in zip(result["tokens"], [-1, *calls], strict=False):
            assert (by, call - before) == (("unverified", 0) if step else (DECODER, 1))
        nodes = [node for call in result["calls"] for node in call["nodes"]]
        for node, path in zip(nodes, paths_of(result), strict=True):
            if path and path == best.tokens[: len(path)]:
                assert node[2] == best.heads[len(path) - 1]
