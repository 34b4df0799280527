"""The language of a recording: detected on speech, in several windows, or in each window."""

import numpy as np
import pytest
import torch
from cases import cases
from made_up_speech import activity
from openai_whisper import noise_and_silence

from espnet_medusa.data.audio.voice_activity import SpeechActivity
from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.longform.language_windows import find_language_windows
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import LongRecording
from espnet_medusa.inference.whisper_windows import WhisperWindows

WHOLE, ONE_ATTEMPT = [(0, 9000)], {"temperature_increment_on_fallback": None}
EVERY = ONE_ATTEMPT | {"no_speech_threshold": None, "multilingual": True}


@cases(
    ([(0.5, 20)], WHOLE, 1, [(0, 3000)]),  # a short pause before speech
    ([(35, 60)], WHOLE, 1, [(3475, 3000)]),
    ([(10, 10.1), (70, 90)], WHOLE, 1, [(6975, 3000)]),  # a noise, and speech much later
    ([(10, 10.1)], WHOLE, 1, [(975, 3000)]),  # nothing but a short sound
    ([], WHOLE, 2, [(0, 3000)]),
    ([(5, 90)], WHOLE, 3, [(475, 3000), (3475, 3000), (6475, 3000)]),
    ([(5, 9), (80, 90)], WHOLE, 3, [(475, 3000), (7975, 3000)]),
    ([(0, 90)], [(4000, 5000)], 1, [(4000, 1000)]),
    ([(0, 10), (46, 90)], [(2000, 4500), (4500, 8000)], 1, [(4575, 3000)]),
    ([], [(4000, 5000)], 1, [(4000, 1000)]),
    ([(0, 90)], [(8000, 20000)], 2, [(8000, 3000)]),  # a clip ends after the recording
)
@pytest.mark.parametrize("known", [True, False])
def test_windows_with_speech(spans_s, clips, count, expected, known, monkeypatch):
    """``known``: voice activity of the whole recording is known; else it is computed in parts."""
    whole = activity(*spans_s, seconds=90.0)
    samples = np.arange(90 * 16000, dtype=np.float64)

    def of(part):
        first, frames = round(part[0] / 512), -(-len(part) // 512)
        return SpeechActivity(whole.probabilities[first : first + frames], len(part))

    monkeypatch.setattr(SpeechActivity, "of", of)
    speech = whole if known else None
    found = find_language_windows(LongRecording(0, samples), clips, 3000, count, speech)
    assert [window.frames for window in found] == [frames for _, frames in expected]
    # Frames of voice activity last 32 ms.
    seeks = [window.seek for window in found]
    assert seeks == pytest.approx([seek for seek, _ in expected], abs=4)


@pytest.fixture
def detected(speech2text, monkeypatch):
    """Return the windows of each detection, whose results are languages by start in s."""

    def detect(languages, sure=0.9):
        windows, codes = [], [*speech2text.whisper.tokens.languages]

        def probabilities(self, batch):
            windows.append([*batch.starts])
            rows = torch.full((len(batch.starts), len(codes)), (1 - sure) / len(codes))
            for row, start in zip(rows, batch.starts, strict=True):
                known = [code for second, code in languages.items() if start >= 100 * second]
                row[codes.index(known[-1])] += sure
            return rows

        init = WhisperWindows.encode.__globals__["WindowBatch"].__init__

        def remember(self, pairs, *sizes):
            init(self, pairs, *sizes)
            self.starts = [window.seek for _, window in pairs]

        monkeypatch.setattr(WhisperWindows.encode.__globals__["WindowBatch"], "__init__", remember)
        monkeypatch.setattr(WhisperWindows, "_language_probabilities", probabilities)
        return windows

    return detect


def of_speech(monkeypatch, *spans_s, seconds):
    made = activity(*spans_s, seconds=seconds)
    monkeypatch.setattr(SpeechActivity, "of", lambda samples: made)


def languages_of(speech2text, monkeypatch, samples, options, language="detect"):
    """Return the recording, and the language and prompt of each window by its start in s."""
    rows, original = {}, WhisperWindows.decode

    def decode(self, encoded, chosen, attempt):
        for row in chosen:
            rows[encoded.starts[row.index] / 100] = row.language, len(row.prompt)
        return original(self, encoded, chosen, attempt)

    monkeypatch.setattr(WhisperWindows, "decode", decode)
    run = speech2text.long_form(LongFormOptions(**options))
    *_, last = run([LongRecording(0, samples, language)])
    assert last.recording.error is None
    return last.recording, rows


def test_silence_before_speech_has_no_language(speech2text, detected, monkeypatch):
    windows = detected({0: "cy", 34: "de"})
    of_speech(monkeypatch, (35, 40), seconds=40)
    found, rows = languages_of(speech2text, monkeypatch, noise_and_silence(40.0, 1), ONE_ATTEMPT)
    assert found.language == "de" and {language for language, _ in rows.values()} == {"de"}
    assert windows == [[pytest.approx(3475, abs=4)]]


def test_several_windows_decide_together(speech2text, detected, monkeypatch):
    windows = detected({0: "cy", 29: "de"})
    of_speech(monkeypatch, (0, 100), seconds=100)
    options = {"language_detection_segments": 3, "clip_timestamps": [0, 90, 91, 92], **ONE_ATTEMPT}
    found, _ = languages_of(speech2text, monkeypatch, noise_and_silence(100.0, 1), options)
    assert found.language == "de" and windows == [[0, 3000, 6000]]


@pytest.mark.parametrize("vad_filter", [False, True])
def test_each_window_has_its_language(vad_filter, speech2text, detected, monkeypatch):
    """Text in another language is not part of the prompt."""
    detected({0: "de", 30: "fr"})
    of_speech(monkeypatch, (0, 29), (31, 59), seconds=60)
    options = {**EVERY, "without_timestamps": True, "vad_filter": vad_filter}
    found, rows = languages_of(speech2text, monkeypatch, noise_and_silence(60.0, 1), options)
    assert found.language == "de"
    assert rows and all(code == ("de" if at < 30 else "fr") for at, (code, _) in rows.items())
    first = min(at for at in rows if at >= 30)
    assert rows[first][1] == 0


def test_an_unsure_language_changes_nothing(speech2text, detected, monkeypatch):
    detected({0: "de", 30: "fr"}, sure=0.4)
    of_speech(monkeypatch, (0, 60), seconds=60)
    options = {**EVERY, "without_timestamps": True}
    _, rows = languages_of(speech2text, monkeypatch, noise_and_silence(60.0, 1), options)
    assert {code for code, _ in rows.values()} == {"de"} and len(rows) > 1


def test_a_given_language_stays(speech2text, detected, monkeypatch):
    windows = detected({0: "de", 30: "fr"})
    samples = noise_and_silence(60.0, 1)
    _, rows = languages_of(speech2text, monkeypatch, samples, EVERY, language="German")
    assert {code for code, _ in rows.values()} == {"de"} and not windows


def test_windows_of_one_language_are_not_multilingual(speech2text):
    with pytest.raises(InputError, match="multilingual: true; allowed with language: detect"):
        [*speech2text.transcribe(noise_and_silence(2.0, 1), multilingual=True)]
