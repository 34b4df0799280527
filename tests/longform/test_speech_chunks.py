"""Speech packed into chunks, held to what chunks are."""

import random

import pytest

from espnet_medusa.longform.speech_chunks import SpeechChunk, pack_speech


def random_speech(rng: random.Random) -> list[tuple[int, int]]:
    edges = sorted(rng.sample(range(2000), 2 * rng.randint(0, 30)))
    return [*zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.parametrize("seed", range(200))
def test_chunks_hold_all_speech_once(seed):
    rng = random.Random(seed)
    speech = random_speech(rng)
    clip = sorted(rng.sample(range(2200), 2)) if rng.random() < 0.5 else (0, 2000)
    most, margin = rng.choice([150, 300, 1500]), rng.choice([0, 10, 40])
    chunks = pack_speech(speech, (*clip,), most, margin)
    inside = [(max(start, clip[0]), min(end, clip[1])) for start, end in speech]
    inside = [(start, end) for start, end in inside if start < end]
    held = [[one for one in inside if chunk.start <= one[0] and one[1] <= chunk.end]
            for chunk in chunks]  # fmt: skip
    assert [one for group in held for one in group] == inside, "each once, in order"
    for chunk, group in zip(chunks, held, strict=True):
        assert clip[0] <= chunk.start < chunk.speech_end <= chunk.end <= clip[1]
        assert chunk.speech_end == group[-1][1]
        assert chunk.end - chunk.start <= most or len(group) == 1
        assert group[0][0] - chunk.start <= margin and chunk.end - chunk.speech_end <= margin
    for one, other, group, following in zip(chunks, chunks[1:], held, held[1:], strict=False):
        assert one.end <= other.start
        assert following[0][1] - group[0][0] > most - 2 * margin, "it did not fit"
        pause = other.start - one.end
        assert pause == 0 or (one.end - one.speech_end, following[0][0] - other.start) == (
            margin, margin,
        )  # fmt: skip


def test_a_pause_is_shared_between_chunks():
    speech = [(100, 900), (930, 1700), (2000, 2100)]
    assert pack_speech(speech, (0, 2150), 1000, 40) == [
        SpeechChunk(60, 915, 900),
        SpeechChunk(915, 1740, 1700),
        SpeechChunk(1960, 2140, 2100),
    ]
