"""Silero's detector on synthesized speech with known pauses."""

import random

import numpy as np
import pytest
import torch
from kernel_kinds import some_threads
from refusals import refuses
from tones import chords, lay_out, say

from espnet_medusa.data.audio import voice_activity
from espnet_medusa.data.audio.quiet_parts import raise_quiet_parts
from espnet_medusa.data.audio.voice_activity import (
    SpeechActivity,
    SpeechDetector,
    SpeechStream,
    VadParameters,
)

pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")

NEAR_S = 0.25  # tolerance of the detector's times


@pytest.fixture(scope="module")
def talk():
    texts = "turn left behind the wooden door", "seven boats are on the lake", "she sings at night"
    return lay_out([say(text) for text in texts], [2.0, 3.0, 1.5, 2.0])


def test_speech_is_detected_and_the_number_of_threads_is_unchanged(talk):
    samples, places = talk
    with some_threads(3):
        for given in (samples, torch.from_numpy(samples), samples.astype(np.float64)):
            find = SpeechDetector(VadParameters(min_silence_duration_ms=1000), 30.0)
            found = find(SpeechActivity.of(given))
            assert np.array(found) == pytest.approx(np.array(places), abs=NEAR_S)
        assert torch.get_num_threads() == 3


@pytest.fixture(scope="module")
def network():
    import silero_vad

    with some_threads(2):
        return silero_vad.load_silero_vad()


@pytest.mark.parametrize("block", [1, 7, 4096])
@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 20_000])
def test_probabilities_are_those_of_silero_frame_by_frame(
    talk, network, block, length, monkeypatch
):
    samples = torch.from_numpy(talk[0][30_000 : 30_000 + length])
    network.reset_states()
    frames = torch.nn.functional.pad(samples, (0, -length % voice_activity.FRAME)).split(
        voice_activity.FRAME
    )
    with torch.no_grad():
        expected = [float(network(frame, 16000)) for frame in frames if len(frame)]
    monkeypatch.setattr(voice_activity, "BLOCK", block)
    found = voice_activity.load_silero().probabilities(samples)
    assert found.tolist() == pytest.approx(expected, abs=1e-4)
    assert length < 20_000 or max(expected) > 0.9 > 0.5 > min(expected)


def test_each_parameter_has_an_effect(talk):
    samples, places = talk
    speech = SpeechActivity.of(samples)

    def detect(longest_s=30.0, **parameters):
        return SpeechDetector(VadParameters(**parameters), longest_s)(speech)

    for silence_ms, count in ((10_000, 1), (2000, 2), (1000, 3)):
        assert len(detect(min_silence_duration_ms=silence_ms)) == count, "pauses of 3 s and 1.5 s"
    assert detect(min_speech_duration_ms=60_000) == []
    assert detect(threshold=0.5, neg_threshold=0.49) != detect(threshold=0.5, neg_threshold=0.01)
    loud = sum(end - start for start, end in detect(threshold=0.9))
    assert loud < sum(end - start for start, end in detect(threshold=0.1))
    short = detect(longest_s=1.0)
    assert all(end - start <= 1.0 for start, end in short) and len(short) > len(places)


def test_silence_noise_and_chords_are_no_speech():
    find = SpeechDetector(VadParameters(), 30.0)
    noise = (0.05 * np.random.default_rng(0).standard_normal(80000)).astype(np.float32)
    for samples in (noise, chords(8.0), *(np.zeros(n, np.float32) for n in (48000, 10, 0))):
        assert find(SpeechActivity.of(samples)) == []


@refuses(
    ({"threshold": 0.0}, "vad_parameters: threshold: 0.0; allowed: above 0, at most 1"),
    ({"threshold": 1.5}, "vad_parameters: threshold: 1.5; allowed: above 0, at most 1"),
    ({"threshold": "high"}, "vad_parameters: threshold: high; allowed: a number"),
    ({"threshold": None}, "vad_parameters: threshold: None; allowed: a number"),
    ({"neg_threshold": 0.6}, "neg_threshold: 0.6; allowed: above 0, at most 0.5"),
    ({"speech_pad_ms": -1}, "vad_parameters: speech_pad_ms: -1 is too small; allowed: 0"),
    ({"min_silence_duration_ms": -1}, "min_silence_duration_ms: -1 is too small"),
    ({"min_speech_duration_ms": -1}, "min_speech_duration_ms: -1 is too small"),
    ({"max_speech_duration_s": 0.5}, "max_speech_duration_s: 0.5; allowed: 1 to 30"),
    ({"max_speech_duration_s": 31}, "max_speech_duration_s: 31; allowed: 1 to 30"),
)
def test_bad_parameters_are_refused(parameters):
    VadParameters(**parameters)


def in_16_bit(samples: np.ndarray, level_db: float) -> np.ndarray:
    scaled = samples * 10 ** (level_db / 20) / np.sqrt(np.mean(samples**2))
    return (np.round(scaled * 32768) / 32768).astype(np.float32)


@pytest.mark.parametrize("level_db", [-64, -70, -78])
def test_quiet_speech_is_speech(talk, level_db):
    samples, places = talk
    find = SpeechDetector(VadParameters(min_silence_duration_ms=1000), 30.0)
    normal = SpeechActivity.of(samples)
    quiet = SpeechActivity.of(in_16_bit(samples, level_db))
    assert np.array(find(quiet)) == pytest.approx(np.array(places), abs=NEAR_S)
    for start_s, end_s in places:
        assert quiet.speech_s(start_s, end_s) > 0.9 * normal.speech_s(start_s, end_s)


def test_quiet_speech_near_a_click_and_in_a_loud_recording_is_speech(talk):
    samples, places = talk
    quiet, find = in_16_bit(samples, -78), SpeechDetector(VadParameters(), 30.0)
    quiet[20_000:20_020] = 0.9  # more than 0.5 s before the first speech
    joined = np.concatenate((quiet, np.zeros(10 * 16000, np.float32), samples))
    speech = SpeechActivity.of(joined)
    for start_s, end_s in places:
        assert speech.speech_s(start_s, end_s) > 0.7 * (end_s - start_s)
    assert find(speech)[-1][1] <= len(joined) / 16000


@pytest.mark.parametrize("level_db", [-20, -64, -78, -90])
def test_noise_at_any_level_is_no_speech(level_db):
    noise = np.random.default_rng(1).standard_normal(160_000).astype(np.float32)
    find = SpeechDetector(VadParameters(), 30.0)
    for samples in (noise, np.cumsum(noise) - np.linspace(0, noise.sum(), len(noise))):
        assert find(SpeechActivity.of(in_16_bit(samples, level_db))) == []


def test_only_quiet_parts_are_amplified(talk):
    samples = talk[0]
    assert raise_quiet_parts(samples) is samples
    for length in (0, 1, 511, 16384, 40_000):
        raised = raise_quiet_parts(samples[:length] * np.float32(1e-3))
        assert raised.shape == (length,) and raised.dtype == np.float32
    raised = raise_quiet_parts(in_16_bit(samples, -70))
    assert -50 < 10 * np.log10(np.mean(raised**2)) < -25
    assert not raise_quiet_parts(np.zeros(40_000, np.float32)).any()


def test_a_stream_has_the_probabilities_of_its_file(talk):
    """Pieces of any size; probabilities differ from the file's only by the gain of quiet parts."""
    speech, whole, pieces = talk[0].astype(np.float32), SpeechStream(), SpeechStream()
    whole.add(speech, final=True)
    expected = SpeechActivity.of(speech).probabilities
    rng, place = random.Random(1), 0
    while place < len(speech):
        size = rng.choice([1, 100, 511, 513, 5000])
        pieces.add(speech[place : place + size], final=place + size >= len(speech))
        place += size
    assert len(pieces.probabilities) == len(expected)
    assert np.allclose(pieces.probabilities, whole.probabilities, atol=1e-4)
    assert np.mean(np.abs(whole.probabilities - expected) < 0.2) > 0.9
    places = pieces.places(1.0, 2.0, 0.5)
    pieces.forget(12345)
    assert pieces.first == 12345 // 512
    assert np.array_equal(pieces.places(1.0, 2.0, 0.5), places)
