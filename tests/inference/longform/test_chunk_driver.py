"""Chunks of speech: in any batch, their segments equal those of a moving window over each."""

import random

import pytest
from decoded_segments import assert_same, decode_samples
from drafted_whisper import drafted
from openai_whisper import noise_and_silence
from recorded_calls import record_calls

from espnet_medusa.data.audio.voice_activity import SpeechActivity
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.longform import driver
from espnet_medusa.inference.longform.driver import pack_speech
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import LongRecording
from espnet_medusa.inference.longform.window import WindowDecoding
from espnet_medusa.inference.whisper_windows import WhisperWindows

CHUNKS = {
    "vad_filter": True, "no_speech_threshold": None, "temperature_increment_on_fallback": None
}  # fmt: skip


def speech_of(num_samples: int) -> list[tuple[float, float]]:
    """Random speech times in s, different for each recording."""
    rng, seconds = random.Random(num_samples), num_samples / 16000
    edges = sorted(round(rng.uniform(0, seconds), 2) for _ in range(2 * rng.randint(2, 8)))
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


@pytest.fixture
def made_up_speech(monkeypatch):
    monkeypatch.setattr(
        driver, "SpeechDetector", lambda *given: lambda speech: speech_of(speech.num_samples)
    )


def alone(speech2text, samples, options) -> list:
    """Segments of moving windows over each chunk as a clip, without short rests of chunks."""
    own = vars(options) | {"vad_filter": False, "vad_parameters": {}}
    pad = round(options.vad_parameters.speech_pad_ms / 10)
    most_s = options.vad_parameters.max_speech_duration_s or 30
    speech = [(round(start * 100), round(end * 100)) for start, end in speech_of(len(samples))]
    found = []
    for chunk in pack_speech(speech, (0, len(samples) // 160), round(most_s * 100), pad):
        clip = chunk.start / 100, chunk.end / 100
        segments = [*speech2text.transcribe(samples, **own | {"clip_timestamps": clip})]
        worth = max(chunk.speech_end - 50, chunk.start + 1)
        found += [segment for segment in segments if segment.seek < worth]
    return found


@pytest.mark.parametrize("case", [
    {},
    {"initial_prompt": "Words of a user", "condition_on_previous_text": False},
    {"without_timestamps": True, "vad_parameters": {"max_speech_duration_s": 5}},
    {"vad_parameters": {"speech_pad_ms": 0}, "initial_prompt": "W", "carry_initial_prompt": True},
], ids=str)  # fmt: skip
def test_each_chunk_is_decoded_like_a_clip(speech2text, made_up_speech, case):
    options = LongFormOptions(**case, **CHUNKS)
    recordings = [noise_and_silence(seconds, seconds) for seconds in (41, 7)]
    expected = [alone(speech2text, samples, options) for samples in recordings]
    assert all(expected)
    for batch_size in (1, 5):
        found = decode_samples(speech2text, recordings, options, batch_size)
        for one, segments, samples in zip(found, expected, recordings, strict=True):
            assert_same(one.segments, segments)
            assert one.error is None and one.text == "".join(each.text for each in one.segments)
            assert one.done_s == one.statistics.audio_seconds == len(samples) / 16000


def test_windows_of_all_recordings_fill_batches(speech2text, made_up_speech, monkeypatch):
    rows = record_calls(monkeypatch, WhisperWindows, "encode", lambda _, windows: len(windows))
    limit = {"max_speech_duration_s": 3}
    options = LongFormOptions(**CHUNKS, without_timestamps=True, vad_parameters=limit)
    recordings = [LongRecording(key, noise_and_silence(20 + key, key)) for key in range(3)]
    chunks = [*speech2text.long_form(options, 4)(recordings)][-1].recording
    assert chunks.done and sum(rows) > 8
    assert all(row == 4 for row in rows[:-1]) and rows[-1] <= 4


@pytest.mark.parametrize(("pair_s", "windows"), [(9.4, [0, 940]), (9.6, [0])])
def test_the_rest_of_a_chunk_is_decoded_if_it_has_enough_speech(
    speech2text, monkeypatch, pair_s, windows
):
    """The text ends with two timestamps: speech after them is not decoded yet."""
    monkeypatch.setattr(driver, "SpeechDetector", lambda *given: lambda speech: [(0, 10)])
    seen, prompts = [], []

    def scripted(self, encoded, rows, attempt):
        seen.append(encoded.lengths.tolist())
        prompts.append([*rows[0].prompt])
        first = self.clock.first
        pair = first + round((pair_s if len(seen) == 1 else 0.3) / self.clock.step_s)
        decoding = WindowDecoding((first, 1000, pair, pair), " a", 0.0, -0.1, 0.0)
        return [(decoding, DecodingStatistics(decoder_calls=1))]

    monkeypatch.setattr(WhisperWindows, "decode", scripted)
    segments = [*speech2text.transcribe(noise_and_silence(12, 1), vad_filter=True)]
    assert [one.seek for one in segments] == windows
    # With the margin of 0.4 s after the speech.
    assert seen == [[(1040 - seek) * 160] for seek in windows]
    assert all(prompts[1:]), "within a chunk a window's prompt is the text before it"


@pytest.mark.parametrize("beam_size", [None, 2])
def test_drafts_and_beams_equal_those_of_moving_windows(speech2text, made_up_speech, beam_size):
    other = drafted(speech2text, beam_size)
    options = LongFormOptions(**CHUNKS)
    samples = noise_and_silence(20, 41)
    expected = alone(other, samples, options)
    assert_same([*other.transcribe(samples, **vars(options))], expected)
    assert expected and other.statistics.decoder_calls < other.statistics.tokens
    if beam_size is None:
        assert_same([*speech2text.transcribe(samples, **vars(options))], expected)


def test_words_are_within_their_chunks(speech2text, made_up_speech):
    samples = noise_and_silence(41, 41)
    options = LongFormOptions(**CHUNKS, word_timestamps=True)
    segments = [*speech2text.transcribe(samples, **vars(options))]
    assert_same([segments[0]], [alone(speech2text, samples, options)[0]])  # no speech before it
    speech = [(round(start * 100), round(end * 100)) for start, end in speech_of(len(samples))]
    chunks = pack_speech(speech, (0, 4100), 3000, 40)
    words = [(segment.seek, word) for segment in segments for word in segment.words]
    assert len(chunks) > 1 < len(words)
    for seek, word in words:
        (chunk,) = [one for one in chunks if one.start <= seek < one.end]
        assert chunk.start / 100 - 0.02 <= word.start_s <= word.end_s <= chunk.end / 100 + 0.02


def test_speech_outside_clips_is_left_out(speech2text, made_up_speech):
    samples = noise_and_silence(45, 65)
    segments = [*speech2text.transcribe(samples, clip_timestamps=(3.0, 11.5, 30.0), **CHUNKS)]
    whole = [*speech2text.transcribe(samples, **CHUNKS)]
    assert segments and {one.seek for one in segments} != {one.seek for one in whole}
    assert all(300 <= one.seek < 1150 or 3000 <= one.seek < 4500 for one in segments)


def test_a_recording_without_speech_has_no_text(speech2text, monkeypatch, caplog):
    monkeypatch.setattr(driver, "SpeechDetector", lambda *given: lambda speech: [])
    quiet = LongRecording("key", noise_and_silence(5, 1), "en", "talk.wav")
    (step,) = speech2text.long_form(LongFormOptions(vad_filter=True))([quiet])
    assert step.done and step.segments == [] and step.recording.error is None
    assert step.recording.text == "" and step.recording.statistics.decoder_calls == 0
    assert step.recording.statistics.audio_seconds == 5
    assert [one.message for one in caplog.records] == ["talk.wav: no speech in 5.0 s"]
    assert [*speech2text.transcribe(quiet.samples, vad_filter=True)] == []


def test_the_detectors_network_runs_once(speech2text, monkeypatch):
    computed = record_calls(monkeypatch, SpeechActivity, "of", lambda samples: samples)
    options = LongFormOptions(**CHUNKS, skip_silence=True, without_timestamps=None)
    decode_samples(speech2text, [noise_and_silence(5, 1)], options)
    assert len(computed) == 1


def test_an_exception_only_ends_its_own_recording(speech2text, made_up_speech, monkeypatch):
    decode = WhisperWindows.decode

    def failing(self, encoded, rows, *others):
        if len(encoded.lengths) > 1 or encoded.lengths[0] == 300 * 160:
            raise RuntimeError("no memory left")
        return decode(self, encoded, rows, *others)

    monkeypatch.setattr(WhisperWindows, "decode", failing)
    monkeypatch.setattr(
        driver, "SpeechDetector",
        lambda *given: lambda speech: [(0.0, 3.0 if speech.num_samples == 48000 else 2.0)],
    )  # fmt: skip
    options = LongFormOptions(**CHUNKS, vad_parameters={"speech_pad_ms": 0})
    samples = [noise_and_silence(3 + (key != 1), key) for key in range(3)]
    ended = decode_samples(speech2text, samples, options, 3)
    assert str(ended[1].error) == "no memory left"
    assert all(ended[key].error is None and ended[key].segments for key in (0, 2))


def test_sampling_in_a_batch_equals_sampling_alone(speech2text, made_up_speech):
    sampling = {"logprob_threshold": -0.1, "temperature_increment_on_fallback": 1.0}
    options = LongFormOptions(**CHUNKS | sampling)
    samples = [noise_and_silence(9, 41)]
    alone, together = (decode_samples(speech2text, samples, options, size)[0] for size in (1, 5))
    assert_same(alone.segments, together.segments)
    assert max(one.temperature for one in alone.segments) > 0


def test_the_detector_limits_speech_to_leave_room_for_margins(speech2text, monkeypatch):
    given = []
    monkeypatch.setattr(driver, "SpeechDetector", lambda *found: given.append(found))
    for parameters, longest_s in (
        ({}, 29.2), ({"max_speech_duration_s": 10, "speech_pad_ms": 100}, 9.8),
        ({"max_speech_duration_s": 2, "speech_pad_ms": 3000}, 1.0),
    ):  # fmt: skip
        options = LongFormOptions(vad_filter=True, vad_parameters=parameters)
        speech2text.long_form(options)
        assert given.pop() == (options.vad_parameters, pytest.approx(longest_s))


@pytest.mark.parametrize("seed", range(200))
def test_chunks_contain_all_speech_once(seed):
    rng = random.Random(seed)
    edges = sorted(rng.sample(range(2000), 2 * rng.randint(0, 30)))
    speech = [*zip(edges[::2], edges[1::2], strict=True)]
    clip = sorted(rng.sample(range(2200), 2)) if rng.random() < 0.5 else (0, 2000)
    most, margin = rng.choice([150, 300, 1500]), rng.choice([0, 10, 40])
    chunks = pack_speech(speech, (*clip,), most, margin)
    inside = [(max(start, clip[0]), min(end, clip[1])) for start, end in speech]
    inside = [(start, end) for start, end in inside if start < end]
    held = [[one for one in inside if chunk.start <= one[0] and one[1] <= chunk.end]
            for chunk in chunks]  # fmt: skip
    assert sum(held, []) == inside, "each once, in order"
    for chunk, group in zip(chunks, held, strict=True):
        assert clip[0] <= chunk.start < chunk.speech_end <= chunk.end <= clip[1]
        assert chunk.speech_end == group[-1][1]
        assert chunk.end - chunk.start <= most or len(group) == 1
        assert group[0][0] - chunk.start <= margin and chunk.end - chunk.speech_end <= margin
    for one, other, group, following in zip(chunks, chunks[1:], held, held[1:], strict=False):
        assert one.end <= other.start
        assert following[0][1] - group[0][0] > most - 2 * margin, "it did not fit"
        pause = one.speech_end, following[0][0]
        shared = sum(pause) // 2
        expected = min(pause[0] + margin, shared), max(pause[1] - margin, shared)
        assert (one.end, other.start) == expected
