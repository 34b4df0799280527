"""Smaller batches after failures: of memory, and of single items."""

import logging
import weakref

import numpy as np
import pytest
import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.batches import Utterance, describe
from espnet_medusa.inference.smaller_batches import run_batch

OutOfMemoryError = torch.cuda.OutOfMemoryError


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
    speech = [np.full(160, number, dtype=np.float32) for number in range(count)]
    entries = [Utterance(f"u{number}", samples, 1) for number, samples in enumerate(speech)]
    return {entry.key: outcome for entry, outcome in run_batch(decoder, entries, describe)}


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
    decoded = decode(decoder, 3)
    assert isinstance(decoded["u1"], error)
    assert (decoded["u0"], decoded["u2"]) == (0, 20)
    assert decoder.tried == [[0, 1, 2], [0], [1], [2]]
    assert "3 utterances of up to 1 frames (3 in total) failed: nothing but" in caplog.text
    assert ("Traceback" in caplog.text) == (error is RuntimeError)


def test_out_of_memory_and_errors_together():
    decoded = decode(Decoder(most_rows=2, unfit=[5], culprits=[2], error=KeyError), 8)
    failed = {key: decoded.pop(key) for key in ("u2", "u5")}
    assert [type(error) for error in failed.values()] == [KeyError, InputError]
    message = str(failed["u5"])
    assert "out of memory with this utterance" in message
    assert "beam_size" in message and "\n" not in message
    assert decoded == {f"u{number}": 10 * number for number in (0, 1, 3, 4, 6, 7)}
