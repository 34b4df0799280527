"""Segments of long audio: decoded, compared, and as openai-whisper has them."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace

import pytest

from espnet_medusa.inference.longform.recording import LongRecording
from espnet_medusa.inference.longform.segment import Segment


def assert_same(found, expected) -> None:
    """Compare segments; probabilities differ by rounding."""
    for one, other in zip(found, expected, strict=True):
        for name in ("average_log_probability", "no_speech_probability"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-4)
        assert without_probabilities(one) == without_probabilities(other)


def without_probabilities(segment: Segment) -> Segment:
    words = tuple(replace(word, probability=0.0) for word in segment.words)
    return replace(segment, words=words, average_log_probability=0.0, no_speech_probability=0.0)


def decode_all(run, recordings: Iterable[LongRecording]) -> dict[Hashable, LongRecording]:
    """Return the decoded recordings by key; each of them ends once, with all its segments."""
    done, segments = {}, defaultdict(list)
    for step in run(recordings):
        key = step.recording.key
        assert key not in done
        segments[key] += step.segments
        if step.done:
            done[key] = step.recording
            assert step.recording.error or step.recording.segments == segments[key]
    return done


def decode_samples(speech2text, samples, options, batch_size=1) -> list[LongRecording]:
    run = speech2text.long_form(options, batch_size)
    done = decode_all(run, (LongRecording(*numbered) for numbered in enumerate(samples)))
    return [done[key] for key in sorted(done)]


def as_openai_has_them(segments: Iterable[Segment]) -> list[dict]:
    return [
        {
            "id": number, "seek": one.seek, "start": one.start_s, "end": one.end_s,
            "text": one.text, "tokens": [*one.tokens], "temperature": one.temperature,
            "avg_logprob": one.average_log_probability,
            "compression_ratio": one.compression_ratio,
            "no_speech_prob": one.no_speech_probability,
            "words": [
                {"word": word.text, "start": word.start_s, "end": word.end_s,
                 "probability": word.probability}
                for word in one.words
            ],
        }
        for number, one in enumerate(segments)
    ]  # fmt: skip
