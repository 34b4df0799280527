"""Best and top permitted tokens, with torch and native kernels."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import cases, pairs
from kernel_kinds import KINDS, running, with_kernels
from searches import build_search
from tiny import EOS, random_encoder_out, tiny_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.native.operations import native_best_tokens, native_top_tokens
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions
from espnet_medusa.decoding.tree.best_tokens import (
    ColumnGroups,
    Restriction,
    best_tokens,
    top_tokens,
)


@pytest.fixture(params=[None, *KINDS], ids=lambda kind: kind or "torch")
def find(request):
    if request.param is None:
        yield best_tokens
    else:
        with running(request.param):
            yield native_best_tokens


KINDS_OF_NUMBERS = {
    "ties": [0.0, 1.0, 2.0], "infinite": [-1.0, 0.5, math.inf, -math.inf],
    "impossible": [-math.inf], "nan": [math.nan, 3.0, 4.0, -math.inf], "any": None,
}  # fmt: skip


def random_rows(values, random):
    """Logits (R, V) drawn from ``values``, and a restriction or None."""
    rows, size = random.integers(0, 6), random.integers(2, 70)

    def numbers(*shape):
        if values is None:
            return torch.from_numpy(random.normal(0, 20, shape).astype(np.float32))
        return torch.from_numpy(random.choice(values, shape).astype(np.float32))

    logits, eos = numbers(rows, size), int(random.integers(size))
    blocked, chosen = random.random((3, size)) < random.random(), random.integers(0, 3, rows)
    blocks = (torch.from_numpy(blocked), torch.from_numpy(chosen))
    blocks = blocks if random.random() < 0.7 else (None, None)
    eos_scores = numbers(rows) if random.random() < 0.5 else None
    return logits, random.choice([None, Restriction(eos, *blocks, eos_scores)])


@pytest.mark.parametrize("values", KINDS_OF_NUMBERS.values(), ids=KINDS_OF_NUMBERS)
def test_best_tokens_are_those_of_numpy(find, values):
    for seed in range(60):
        logits, restriction = random_rows(values, np.random.default_rng(seed))
        scores, exact = logits.numpy().copy(), logits.numpy().astype(np.float64)
        for row in range(len(scores)):
            if restriction is not None and restriction.blocked is not None:
                scores[row, restriction.blocked[restriction.rows[row]]] = -np.inf
            if restriction is not None and restriction.eos_scores is not None:
                scores[row, restriction.eos] = restriction.eos_scores[row]
        result = find(logits, restriction)
        assert result.tokens.tolist() == [int(row.argmax()) for row in scores]
        sums = [np.nan if np.isnan(row).any() else np.logaddexp.reduce(row) for row in exact]
        np.testing.assert_allclose(result.normalizers.numpy(), sums, rtol=1e-6, atol=1e-6)


@with_kernels
def test_best_tokens_of_a_large_vocabulary(kind, threads):
    size, eos = 51865, 50257
    generator = torch.Generator().manual_seed(threads)
    blocked = torch.rand(2, size, generator=generator) < 0.5
    for rows in (1, 9):
        logits = 5 * torch.randn(rows, size, generator=generator)
        eos_scores = 20 * torch.randn(rows, generator=generator)
        for restriction in (None, Restriction(eos, blocked, torch.arange(rows) % 2, eos_scores)):
            result = native_best_tokens(logits, restriction)
            scores = logits if restriction is None else restriction.apply(logits)
            assert torch.equal(result.tokens, scores.argmax(-1))
            sums = logits.double().logsumexp(-1)
            torch.testing.assert_close(result.normalizers.double(), sums, rtol=1e-6, atol=0)


def assert_top_tokens(logits, count, restriction):
    result = native_top_tokens(logits, count, restriction)
    expected = top_tokens(logits.double(), count, restriction)
    torch.testing.assert_close(result.log_probs, expected.log_probs)
    permitted = expected.log_probs > -math.inf
    assert torch.equal(result.tokens[permitted], expected.tokens[permitted])


@with_kernels
@pairs(kind=KINDS, threads=[1, 2], size=[3, 16, 40, 51865], indirect=["kind", "threads"])
def test_top_tokens_are_those_of_torch(kind, threads, size):
    generator = torch.Generator().manual_seed(size)
    for rows, count in ((0, 1), (1, 1), (2, 3), (9, min(size, 17)), (5, min(size, 300))):
        logits = 5 * torch.randn(rows, size, generator=generator)
        blocked = torch.rand(2, size, generator=generator) < 0.3
        for restriction in (None, Restriction(0, blocked, torch.arange(rows) % 2)):
            assert_top_tokens(logits, count, restriction)


@with_kernels
@pairs(kind=KINDS, threads=[1, 2], seed=range(20), indirect=["kind", "threads"])
def test_best_and_top_tokens_of_two_groups_are_those_of_torch(kind, threads, seed):
    random = np.random.default_rng(seed)
    rows, size = int(random.integers(1, 9)), int(random.integers(3, 200))
    eos, first = sorted(random.integers(0, size, 2).tolist())
    first += eos == first
    logits = 4 * torch.from_numpy(random.standard_normal((rows, size))).float()
    logits[:, first:] += torch.from_numpy(random.choice([-9.0, 0.0, 9.0], (rows, 1))).float()
    bounds = torch.from_numpy(np.sort(random.integers(first, size + 1, (rows, 2)), axis=1))
    flags = torch.from_numpy(random.random((2, rows)) < 0.3)
    blocked = torch.from_numpy(random.random((2, size)) < random.choice([0.0, 0.3, 1.0]))
    chosen = torch.arange(rows) % 2
    for renormalize in (False, True):
        groups = ColumnGroups(first, torch.cat([flags.long().t(), bounds], dim=1))
        restriction = Restriction(eos, blocked, chosen, groups=groups, renormalize=renormalize)
        assert_top_tokens(logits, int(random.integers(1, size + 1)), restriction)
        result, expected = native_best_tokens(logits, restriction), best_tokens(logits, restriction)
        scores = restriction.apply(logits)
        torch.testing.assert_close(result.normalizers, expected.normalizers)
        some = scores.amax(-1) > -math.inf  # some token is allowed
        assert torch.equal(result.tokens[some], expected.tokens[some])
        sums = (scores if renormalize else logits)[some].double().logsumexp(-1)
        torch.testing.assert_close(expected.normalizers[some].double(), sums)
        ends = replace(restriction, eos_scores=torch.full((rows,), 99.0))
        changed = native_best_tokens(logits, ends)
        torch.testing.assert_close(changed, best_tokens(logits, ends))
        if renormalize:  # the score of an end symbol with a penalty, too
            scores = ends.apply(logits)
            some = scores.amax(-1) > -math.inf
            expected = scores[some].log_softmax(-1).amax(-1)
            torch.testing.assert_close(changed.log_probs[some], expected)


@with_kernels
def test_top_tokens_of_ties_infinity_and_nan(kind):
    rows = [[1.0, 2.0, 2.0, 1.0, 2.0], [-math.inf] * 4 + [3.0], [0.0, math.nan, 1.0, 2.0, 3.0]]
    log_probs, tokens = native_top_tokens(torch.tensor(rows), 4)
    assert tokens[0].tolist() == [1, 2, 4, 0], "of equal scores the first"
    expected = torch.tensor(rows[:2]).log_softmax(-1).sort(descending=True).values[:, :4]
    torch.testing.assert_close(log_probs[:2], expected)
    assert tokens[1, 0] == 4 and log_probs[2].isnan().all()


SUPPRESSED = {"suppress_tokens": [0, 2, 7], "begin_suppress_tokens": [1, EOS]}


@with_kernels
@cases(
    ("greedy", SUPPRESSED),
    ("greedy", {"exponential_decay_length_penalty": [3, 1.5], "suppress_tokens": [5]}),
    ("greedy", {"forced_prefix": [8, 2]}),
    ("greedy", SUPPRESSED | {"acceptance": "typical"}),
    ("beam", SUPPRESSED | {"draft_depth": 3}),
    ("beam", {"draft_depth": 3}),
    ids=str,
)
def test_searches_are_the_same_with_kernels_and_torch(search, options, kind):
    runtime, results = build_runtime(tiny_decoder(1, "recurrent"), "int8"), []
    limits = [LengthLimits(-15, minlenratio) for minlenratio in (0.0, 0.5, 0.0)]
    for functions in ((runtime.best_tokens, runtime.top_tokens), (best_tokens, top_tokens)):
        runtime.best_tokens, runtime.top_tokens = functions
        decode = build_search(runtime, SearchOptions(search=search, **options), beam_size=4)
        states = decode(*random_encoder_out(0, [20, 9, 4]), torch.full((3, 1), EOS), limits)
        assert all(sum(state.statistics.drafted) for state in states)
        results.append([best for state in states for best in state.n_best])
    by_kernels, by_torch = results
    assert [best.tokens for best in by_kernels] == [best.tokens for best in by_torch]
    scores = [best.score for best in by_torch]
    assert [best.score for best in by_kernels] == pytest.approx(scores, abs=1e-4)
