"""Long synthetic encoder output for CTC: labels, silences and repeated phrases."""

import random

import torch
from tiny import HIDDEN_SIZE, VOCAB_SIZE

LABELS = range(1, VOCAB_SIZE - 1)
BLANK = 0


class EncodedCTC:
    """A CTC branch whose logits are the first values of the encoder output."""

    @staticmethod
    def log_softmax(encoder_out):
        return encoder_out[..., :VOCAB_SIZE].log_softmax(dim=-1)


class DoubleCTC(EncodedCTC):
    """The same in float64."""

    @staticmethod
    def log_softmax(encoder_out):
        return EncodedCTC.log_softmax(encoder_out).double()


def random_speech(rng: random.Random, frames: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return encoder output (U, S, D) of utterances with these numbers of frames, and the lengths.

    Each label has one to four frames, and sometimes a competitor. Between labels there are a few
    blank frames, or a silence. Some utterances repeat a phrase.
    """
    generator = torch.Generator().manual_seed(rng.randrange(2**32))
    encoder_out = torch.randn(len(frames), max(frames), HIDDEN_SIZE, generator=generator)
    for row, count in zip(encoder_out, frames, strict=True):
        logits = row[:count, :VOCAB_SIZE].mul_(rng.choice([0.5, 1.0, 2.0]))
        logits[:, BLANK] += rng.choice([4.0, 6.0, 9.0, 14.0])  # log-odds of silence
        gaps, silences = (1, rng.choice([4, 12, 30])), (20, rng.choice([60, 150, 400]))
        phrase = [rng.choice(LABELS) for _ in range(rng.randint(2, 5))]
        repeats, at, place = rng.random() < 0.4, rng.randint(0, 30), 0
        while at < count:
            label = phrase[place % len(phrase)] if repeats else rng.choice(LABELS)
            end = at + rng.choice([1, 1, 2, 4])
            logits[at:end, label] += rng.choice([10.0, 14.0, 20.0])
            if rng.random() < 0.3:
                logits[at:end, rng.choice(LABELS)] += rng.choice([9.0, 13.0, 19.0])
            at = end + rng.randint(*(silences if rng.random() < 0.15 else gaps))
            place += 1
    return encoder_out, torch.tensor(frames)
