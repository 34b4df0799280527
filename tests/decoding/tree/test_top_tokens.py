"""``top_scores`` against torch.topk."""

import torch
from cases import combinations

from espnet_medusa.decoding.tree.best_tokens import CHUNK, top_scores

LIMIT = CHUNK * CHUNK  # columns up to which top_scores uses topk


def assert_best(scores: torch.Tensor, count: int) -> None:
    """Compare with torch.topk; equal values may have other columns."""
    values, columns = top_scores(scores, count)
    assert torch.equal(values, scores.topk(count, dim=-1).values)
    assert torch.equal(scores.gather(1, columns), values)
    assert all(len({*row}) == count for row in columns.tolist())


@combinations(count=[1, 2, 5, CHUNK - 1, CHUNK, CHUNK + 1, 150])
@combinations(size=[200, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + CHUNK - 1, LIMIT + CHUNK, 51865])
def test_random_scores(size, count):
    scores = torch.randn(7, size, generator=torch.Generator().manual_seed(size + count))
    assert_best(scores, count)
    expected = scores.topk(count, dim=-1)
    assert torch.equal(top_scores(scores, count)[1], expected.indices)  # no two are equal


@combinations(count=[1, 3, 20, 100], size=[300, LIMIT + 17, 51865])
def test_best_scores_in_one_chunk_or_at_the_end(size, count):
    scores = torch.randn(5, size, generator=torch.Generator().manual_seed(count))
    scores[0, 3 * CHUNK : 4 * CHUNK] += 50  # all in one chunk
    scores[1, -5:] += 50  # after the last whole chunk
    scores[2, ::CHUNK] += 50  # one in every chunk
    scores[3] = -scores[3].abs().sort().values  # in falling order
    scores[4] = scores[3].flip(0)
    assert_best(scores, count)


@combinations(count=[1, 4, 70], size=[300, LIMIT + 17, 51865])
def test_rows_with_few_or_no_allowed_tokens(size, count):
    scores = torch.full((4, size), -torch.inf)
    scores[1, size // 2] = -3.0
    scores[2, size - 1] = 2.0
    scores[2, [0, 1, CHUNK]] = torch.tensor([1.0, 5.0, 0.0])
    scores[3] = torch.randn(size, generator=torch.Generator().manual_seed(0))
    scores[3, torch.rand(size, generator=torch.Generator().manual_seed(1)) < 0.9] = -torch.inf
    assert_best(scores, count)


@combinations(dtype=[torch.bfloat16, torch.float64])
def test_equal_scores_and_other_types(dtype):
    scores = torch.randint(0, 9, (6, LIMIT + 33), generator=torch.Generator().manual_seed(0))
    for count in (1, 2, 50):
        assert_best(scores.to(dtype), count)
