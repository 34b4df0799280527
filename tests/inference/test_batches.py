"""Batches: limits, reading ahead, and failures."""

import itertools
import logging
import weakref

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as some

from espnet_medusa.errors import InputError
from espnet_medusa.inference import batches
from espnet_medusa.inference.batches import Utterance, decode_together, make_batches, read_pools

OutOfMemoryError = torch.cuda.OutOfMemoryError


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


class Decoder:
    """Returns ten times the number of each utterance; raises errors on demand."""

    def __init__(self, most_rows=100, unfit=(), culprits=(), error=ValueError):
        self.most_rows, self.unfit = most_rows, set(unfit)
        self.culprits, self.error = set(culprits), error
        self.tried = []
        self.held = []

    def __call__(self, utterances):
        numbers = [int(utterance.speech[0]) for utterance in utterances]
        assert all(reference() is None for reference in self.held), "not freed"
        self.tried.append(numbers)
        if len(numbers) > self.most_rows or self.unfit & {*numbers}:
            logits, circle = torch.zeros(3), []
            circle += [circle, logits]
            self.held.append(weakref.ref(logits))
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")
        if self.culprits & {*numbers}:
            raise self.error("nothing but\nnoise")
        return [number * 10 for number in numbers]


def decode(decoder, count):
    entries = [utterance(number) for number in range(count)]
    return {entry.key: outcome for entry, outcome in decode_together(decoder, entries)}


def test_out_of_memory_halves_batches_until_they_fit(caplog):
    decoder = Decoder(most_rows=2)
    assert decode(decoder, 7) == {f"u{number}": 10 * number for number in range(7)}
    assert [len(numbers) for numbers in decoder.tried] == [7, 4, 2, 2, 3, 2, 1]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert "7 utterances" in warnings[0].getMessage()
    assert all("max_batch_frames or batch_size" in record.getMessage() for record in warnings)


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_only_the_utterance_with_an_error_fails(caplog, error):
    decoder = Decoder(culprits=[1], error=error)
    outcomes = decode(decoder, 3)
    assert isinstance(outcomes["u1"], error)
    assert (outcomes["u0"], outcomes["u2"]) == (0, 20)
    assert decoder.tried == [[0, 1, 2], [0], [1], [2]]
    assert "a batch of 3 utterances failed: nothing but" in caplog.text
    assert ("Traceback" in caplog.text) == (error is RuntimeError)


def test_out_of_memory_and_errors_together():
    outcomes = decode(Decoder(most_rows=2, unfit=[5], culprits=[2], error=KeyError), 8)
    failed = {key: outcomes.pop(key) for key in ("u2", "u5")}
    assert [type(error) for error in failed.values()] == [KeyError, InputError]
    message = str(failed["u5"])
    assert "out of memory with this utterance" in message
    assert "beam_size" in message and "\n" not in message
    assert outcomes == {f"u{number}": 10 * number for number in (0, 1, 3, 4, 6, 7)}
