"""Texts without timestamps that end before the speech does: where, and what follows."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import cases
from decoded_segments import decode_samples
from made_up_speech import activity
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from whisper.audio import N_FRAMES, N_SAMPLES, log_mel_spectrogram, pad_or_trim
from whisper.tokenizer import get_tokenizer

from espnet_medusa.data.audio.voice_activity import SpeechActivity
from espnet_medusa.inference.longform import early_ends
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import Row
from espnet_medusa.inference.longform.window import Window
from espnet_medusa.inference.longform.window_steps import WindowSteps
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.whisper_windows import WhisperWindows

SECONDS, CONTEXT = 12, 32


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """openai-whisper's model, and ours with its weights."""
    path = tmp_path_factory.mktemp("whisper") / "whisper.pt"
    model = openai_whisper(2, end=4.0, text_context=CONTEXT)
    save_openai_whisper(model, path)
    return model, Speech2Text.from_pretrained(str(path), search="greedy", language="en")


@torch.no_grad()
def theirs_s(model, samples: np.ndarray, window: Window, before, language, text) -> float:
    """The most probable timestamp after a text, by openai-whisper's model."""
    tokenizer = get_tokenizer(True, language=language, task="transcribe")
    mel = log_mel_spectrogram(samples, padding=N_SAMPLES)
    mel = pad_or_trim(mel[:, window.seek : window.seek + window.frames], N_FRAMES)
    previous = [tokenizer.sot_prev, *before] if before else []
    first = tokenizer.timestamp_begin
    tokens = [*previous, *tokenizer.sot_sequence, first, *text][-CONTEXT:]
    logits = model.decoder(torch.tensor([tokens]), model.encoder(mel[None]))
    return 0.02 * int(logits[0, -1, first:].argmax())


@pytest.mark.parametrize("seed", range(4))
def test_the_end_of_a_text_equals_that_of_openai_whisper(both, seed):
    model, speech2text = both
    windows, rng = WhisperWindows(speech2text.model, LongFormOptions()), np.random.default_rng(seed)
    recordings = [noise_and_silence(seconds, seed) for seconds in (0.02, 5.3, 41.0)]
    spans = [Window(0, 2), Window(0, 530), Window(1100, 3000)]
    features = [windows.features(samples) for samples in recordings]
    encoded = windows.encode([*zip(features, spans, strict=True)])
    texts = [rng.integers(0, 50000, size).tolist() for size in (1, 7, CONTEXT // 2)]
    prompts = [[], *(rng.integers(0, 50000, size).tolist() for size in (5, CONTEXT // 2 - 1))]
    languages = ["en", "de", "en"]
    for rows in ([0, 1, 2], [2, 1]):
        chosen = [Row(row, prompts[row], languages[row]) for row in rows]
        of_rows = chosen, [texts[row] for row in rows]
        expected = [
            theirs_s(model, recordings[row], spans[row], prompts[row], languages[row], texts[row])
            for row in rows
        ]
        assert windows.text_ends_s(encoded, *of_rows) == pytest.approx(expected)


@pytest.fixture
def decoded(both, monkeypatch):
    """Function that decodes recordings with made-up speech and ends of texts.

    It returns the recordings, and for each call of ``text_ends_s`` its number of windows.
    """

    def run(speech, ends_s, count=1, probable=-math.inf, least=0.0, **options):
        asked = []

        def text_ends_s(windows, encoded, rows, texts):
            assert len(rows) == len(texts)
            asked.append(len(rows))
            return [ends_s[len(asked) - 1]] * len(rows)

        monkeypatch.setattr(SpeechActivity, "of", lambda samples: speech)
        monkeypatch.setattr(WhisperWindows, "text_ends_s", text_ends_s)
        monkeypatch.setattr(early_ends, "PROBABLE", probable)
        monkeypatch.setattr(early_ends, "LEAST_PROBABLE", least)
        samples = [noise_and_silence(SECONDS - number, number) for number in range(count)]
        options = {"no_speech_threshold": None, "without_timestamps": None} | options
        options = {"skip_silence": True} | options
        monkeypatch.setattr(WindowSteps, "_skip_silence", lambda steps, passage, window: window)
        given = LongFormOptions(temperature_increment_on_fallback=None, **options)
        return decode_samples(both[1], samples, given, count), asked

    return run


@cases(
    ([(0, 12)], [4.0, 8.5], [0, 400]),
    ([(0, 12)], [4.0, 2.5, 5.5], [0, 400, 650]),
    ([(0, 12)], [10.8], [0]),  # 1.2 s lack
    ([(0, 12)], [0.3], [0]),  # too short a text
    ([(0, 4), (5.5, 6.5)], [4.2], [0]),  # 1 s of speech after the text
    ([(0, 4), (5.5, 6.5), (7, 7.5)], [4.2], [0, 420]),
    ([(0, 3), (8, 12)], [3.2, 8.5], [0, 320]),
    ([(3, 4.7)], [], [0]),  # too little speech for a text that lacks some
)
def test_the_next_window_begins_where_a_text_ends_early(spans, ends_s, seeks, decoded):
    (recording,), asked = decoded(activity(*spans, seconds=SECONDS), ends_s)
    assert recording.error is None and not recording.timestamps
    assert [segment.seek for segment in recording.segments] == seeks
    assert asked == [1] * len(ends_s)
    starts_s = [segment.start_s for segment in recording.segments]
    assert starts_s == [seek / 100 for seek in seeks]
    assert [segment.end_s for segment in recording.segments][:-1] == starts_s[1:]


@cases(
    ([(0, 12)], [], [0]),
    ([(0, 3), (4.2, 12)], [], [0]),  # the pause is too short
    ([(0, 3), (6, 12)], [3.2, 8.0], [0, 320]),
    ([(0, 3), (6, 12)], [6.0], [0, 600]),
    ([(0, 3), (6, 12)], [8.0], [0]),  # the text includes the speech after the pause
    ([(0, 3), (6, 7)], [], [0]),  # too little speech after the pause
)
def test_an_improbable_text_is_continued_after_a_long_pause(spans, ends_s, seeks, decoded):
    (recording,), asked = decoded(activity(*spans, seconds=SECONDS), ends_s, probable=0.0)
    assert [segment.seek for segment in recording.segments] == seeks
    assert asked == [1] * len(ends_s)


@cases(
    ([(0, 12)], [3.4, 12.0], -math.inf, [0, 340]),
    ([(0, 12)], [3.8], -math.inf, [0]),  # lacks 8.2 s of 12 s
    ([(0, 12)], [], 0.0, [0]),  # the text is too improbable
)
def test_an_improbable_text_that_lacks_most_speech_continues(spans, ends_s, least, seeks, decoded):
    speech = activity(*spans, seconds=SECONDS)
    (recording,), asked = decoded(speech, ends_s, probable=0.0, least=least)
    assert [segment.seek for segment in recording.segments] == seeks
    assert asked == [1] * len(ends_s)


def test_the_speech_after_a_text_is_decoded_as_a_clip(decoded):
    options = {"condition_on_previous_text": False}
    (whole,), _ = decoded(activity((0, 12), seconds=SECONDS), [4.0, 8.0], **options)
    options |= {"without_timestamps": True}
    alone, asked = [], []
    for clip in ((0, 12), (4, 12)):
        (recording,), none = decoded(None, [], clip_timestamps=clip, **options)
        alone, asked = [*alone, *recording.segments], [*asked, *none]
    assert not asked, "with this option, a window is one segment"
    assert [one.tokens for one in whole.segments] == [one.tokens for one in alone]
    assert whole.text == "".join(one.text for one in alone)


def test_in_a_batch_only_texts_that_end_early_are_continued(decoded):
    recordings, asked = decoded(activity((0, 12), seconds=SECONDS), [10.0, 11.0], count=2)
    assert [[one.seek for one in found.segments] for found in recordings] == [[0, 1000], [0]]
    assert asked == [2, 1]


def test_only_probable_texts_without_timestamps_are_continued(decoded):
    speech = activity((0, 12), seconds=SECONDS)
    (recording,), asked = decoded(speech, [], without_timestamps=False)
    assert recording.error is None and recording.segments and not asked
    (recording,), asked = decoded(speech, [12.0])
    assert asked == [1]
    mean = recording.segments[0].average_log_probability
    for above, expected in ((-0.01, [1]), (0.01, [])):
        assert decoded(speech, [12.0], probable=mean + above)[1] == expected


@pytest.fixture
def written(decoded, monkeypatch):
    """Function that decodes a recording of speech as texts, with made-up ends of texts."""

    def run(texts, ends_s, **options):
        texts, real = [*texts], WhisperWindows.decode

        def decode(windows, *arguments):
            ((decoding, statistics),) = real(windows, *arguments)
            text = texts.pop(0)
            tokens = tuple(windows.text.encode(text))
            return [(replace(decoding, tokens=tokens, text=text), statistics)]

        monkeypatch.setattr(WhisperWindows, "decode", decode)
        (recording,), asked = decoded(activity((0, 12), seconds=SECONDS), ends_s, **options)
        assert recording.error is None and not texts
        return recording.text, len(asked)

    return run


@cases(
    (" I left. You have seen it.", " You have seen it.", False),
    (" I left. You have seen it.", " you have seen, it", False),
    (" I left. You have seen it.", " You have seen it. Or not.", True),
    (" I left. You have seen it. Or not.", " You have seen it.", True),
    (" You have seen it. No.", " No.", True),  # too short: it may have been said twice
)
def test_a_continued_text_that_repeats_the_end_is_dropped(first, second, kept, written):
    assert written([first, second], [4.0, 12.0]) == (first + second * kept, 1 + kept)


def test_a_text_that_repeats_that_of_an_earlier_clip_is_kept(written):
    text, clips = " You have seen it.", (0, 4, 4, 12)
    assert written([text, text], [4.0, 8.0], clip_timestamps=clips) == (2 * text, 2)
