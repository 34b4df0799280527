"""Which windows are decoded, again or not at all: failures, loops, silence and pauses."""

import numpy as np
import pytest
from cases import cases
from decoded_segments import decode_samples
from made_up_speech import activity
from openai_whisper import noise_and_silence
from recorded_calls import record_calls

from espnet_medusa.data.audio.voice_activity import SpeechActivity
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.window import WindowDecoding
from espnet_medusa.inference.longform.window_steps import choose_attempt
from espnet_medusa.inference.whisper_windows import WhisperWindows

LOOP = "no, " * 80
ANY, LOOPS = LongFormOptions(), LongFormOptions(fallback_on="repetition")


def attempt(text: str, average: float, no_speech: float = 0.0) -> WindowDecoding:
    return WindowDecoding((1,), text, 0.0, average, no_speech)


@cases(
    ("a text", -0.5, 0.0, False, False),
    ("a text", -1.5, 0.0, True, False),
    ("a text", -1.5, 0.9, False, False),
    (LOOP, -0.1, 0.0, True, True),
    (LOOP, -1.5, 0.9, False, True),
)
def test_failures(text, average, no_speech, fails, fails_on_repetition):
    decoding = attempt(text, average, no_speech)
    assert decoding.has_failed(ANY) == fails
    assert decoding.has_failed(LOOPS) == fails_on_repetition


def test_the_least_repetitive_attempt_is_used_if_all_repeat_themselves():
    loops = [attempt("no, " * count, -0.1) for count in (60, 20, 90)]
    assert choose_attempt(loops, ANY) is loops[-1]
    assert choose_attempt(loops, LOOPS) is loops[1]
    good = attempt("a text", -3.0)
    assert choose_attempt([*loops, good], LOOPS) is good


def test_speech_activity():
    speech = activity((1, 3), (6, 7), (9, 40))
    spans = [(0.5, 1.2), (3.2, 5.5), (6.5, 6.6), (41, 60), (41, 90)]
    has_speech = [speech.new_speech_s(*span) is not None for span in spans]
    assert has_speech == [True, False, True, False, False]


@cases(
    ((0, 2), 0), ((2.6, 6), 2.6), ((2.9, 6.1), 6), ((5.9, 6.1), 6), ((6.9, 60), 9),
    ((2.9, 6), None), ((2.9, 3.0), None), ((40.5, 60), None), ((59.9, 70), None),
)  # fmt: skip
def test_new_speech_starts_after_the_end_of_a_word(span, start_s):
    found_s = activity((0, 3), (6, 7), (9, 40)).new_speech_s(*span)
    assert found_s == (None if start_s is None else pytest.approx(start_s, abs=0.04))


def test_speech_to_the_end_of_a_recording():
    speech = activity((0, 60))
    assert speech.new_speech_s(50, 60) == 50 and speech.new_speech_s(59.8, 60) is None
    assert SpeechActivity(np.zeros(0, np.float32), 0).new_speech_s(0, 1) is None


@pytest.mark.parametrize("level", [0.0, 1e-4, 0.05])
def test_noise_is_no_speech(level):
    samples = level * np.random.default_rng(0).standard_normal(48000).astype(np.float32)
    assert SpeechActivity.of(samples).new_speech_s(0, 3) is None


@pytest.fixture
def decoded(speech2text, monkeypatch):
    """Function that decodes with made-up speech; returns the recording and all attempts."""
    attempts = record_calls(monkeypatch, WhisperWindows, "decode", lambda *given: given[-1])

    def run(seconds, speech, **options):
        monkeypatch.setattr(SpeechActivity, "of", lambda samples: speech)
        options = {"no_speech_threshold": None, "logprob_threshold": None} | options
        samples = [noise_and_silence(seconds, 1)]
        return *decode_samples(speech2text, samples, LongFormOptions(**options)), attempts

    return run


@cases(
    (8, [(0, 8)], False), (8, [(1, 3), (5.5, 7)], False), (30, [(0, 30)], False),
    (30.01, [(0, 31)], True),
)  # fmt: skip
def test_audio_that_fits_in_the_window_needs_no_timestamps(seconds, spans, timestamps, decoded):
    recording, attempts = decoded(seconds, activity(*spans), without_timestamps=None)
    assert recording.error is None and recording.timestamps == timestamps
    assert {one.timestamps for one in attempts} == {timestamps}


def test_windows_without_speech_are_skipped(decoded):
    speech = activity((31, 59), seconds=90)
    everything, attempts = decoded(85, speech)
    windows = len(attempts)
    recording, attempts = decoded(85, speech, skip_silence=True)
    assert recording.error is None and recording.done_s == everything.done_s == 85
    assert 0 < len(attempts) - windows < windows
    assert all(30 <= segment.seek / 100 < 60 for segment in recording.segments)
    recording, _ = decoded(85, activity((0, 29), (47, 59)), skip_silence=True)
    starts_s = sorted({segment.seek / 100 for segment in recording.segments})
    assert starts_s == pytest.approx([0, 46.75], abs=0.04), "shortly before the next speech"
    recording, _ = decoded(8, activity((5, 7)), skip_silence=True)
    assert {segment.seek for segment in recording.segments} == {0}, "nothing precedes the pause"
    silent, attempts = decoded(8, activity(), skip_silence=True)
    assert silent.error is None and silent.text == "" and silent.segments == []


@pytest.mark.parametrize("without_timestamps", [None, False, True])
def test_voice_activity_that_is_off_does_not_run(without_timestamps, speech2text, monkeypatch):
    monkeypatch.setattr(SpeechActivity, "of", lambda samples: pytest.fail("it runs"))
    batches = record_calls(monkeypatch, WhisperWindows, "encode", lambda *given: given[-1])
    options = {"no_speech_threshold": None, "without_timestamps": without_timestamps}
    given = LongFormOptions(**options, temperature_increment_on_fallback=None)
    recording = decode_samples(speech2text, [noise_and_silence(9, 1)], given)[0]
    assert recording.error is None and recording.segments
    assert not any(window.pauses for batch in batches for _, window in batch)


def test_only_an_attempt_with_another_after_it_is_stopped(decoded):
    _, attempts = decoded(8, None, compression_ratio_threshold=0.01)
    assert [one.temperature for one in attempts[:6]] == LongFormOptions().temperatures
    assert [one.stop_repetitions for one in attempts[:6]] == [True] * 5 + [False]


def test_an_unfinished_text_that_repeats_itself(speech2text):
    windows = WhisperWindows(speech2text.model, LongFormOptions())
    phrase = windows.text.encode(" I do not know what to say.")
    first = windows.clock.first
    looped = [token for _ in range(8) for token in (first + 5, *phrase, first + 50)]
    assert windows.repeats_itself(looped), "times in it do not matter"
    assert not windows.repeats_itself(looped[: 3 * len(phrase)])
    other = [token for number in range(60) for token in windows.text.encode(f" {number * 77}")]
    assert not windows.repeats_itself(other)
    without = LongFormOptions(compression_ratio_threshold=None)
    assert not WhisperWindows(speech2text.model, without).repeats_itself(looped)
