"""Batches: limits and reading ahead."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from espnet_medusa.inference import batches
from espnet_medusa.inference.batches import Utterance, join_batches, make_batches, read_pools


def utterance(number: int, samples: int = 160) -> Utterance:
    return Utterance(f"u{number}", np.full(samples, number, dtype=np.float32), samples // 160)


@given(
    lengths=some.lists(some.integers(0, 40), max_size=30),
    batch_size=some.integers(1, 7),
    max_frames=some.none() | some.integers(1, 120),
)
@example(lengths=[0, 0], batch_size=2, max_frames=1)
def test_batches_have_each_index_once_and_are_as_large_as_allowed(lengths, batch_size, max_frames):
    made = make_batches(lengths, batch_size, max_frames)

    def fits(batch):
        padded = len(batch) * max(lengths[index] for index in batch)
        return len(batch) <= batch_size and (max_frames is None or padded <= max_frames)

    order = [index for batch in made for index in batch]
    assert order == sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    assert all(batch for batch in made)
    assert all(fits(batch) or len(batch) == 1 for batch in made)
    for batch, following in itertools.pairwise(made):
        assert not fits([*batch, following[0]]), "the next utterance would have fit"


@pytest.mark.parametrize(("batch_size", "ahead"), [(1, 1), (2, 8), (3, 12)])
def test_only_one_pool_is_read_ahead(monkeypatch, batch_size, ahead):
    monkeypatch.setattr(batches, "POOL_BATCHES", 4)
    read = []

    def reader():
        for number in range(30):
            read.append(number)
            yield utterance(number, samples=160 * (number % 5 + 1))

    taken = 0
    for pool in read_pools(reader(), batch_size):
        taken += len(pool)
        assert len(read) == taken and len(pool) <= ahead
        lengths = [len(entry.speech) for entry in pool]
        assert lengths == sorted(lengths, reverse=True)
    assert taken == 30 and len(pool) == (30 % ahead or ahead)


def test_long_audio_makes_pools_smaller(monkeypatch):
    monkeypatch.setattr(batches, "POOL_BYTES", 4000)
    entries = [utterance(number, samples) for number, samples in enumerate([600, 600, 200, 1, 2])]
    pools = [*read_pools(entries, 8)]
    assert [[entry.key for entry in pool] for pool in pools] == [["u0", "u1"], ["u2", "u4", "u3"]]


def test_joined_batches_are_decoded_with_as_many_together_as_in_the_first_one():
    batches = [[5, 1], [2, 4, 3], [6, 7, 0], [9]]
    assert [*join_batches(batches, 3)] == [([5, 1, 2, 4, 3, 6, 7, 0], 2), ([9], 1)]
    assert [*join_batches(batches, 1)] == [(batch, len(batch)) for batch in batches]
