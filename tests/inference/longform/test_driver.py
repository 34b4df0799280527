"""The moving window against openai-whisper's, over random decodings."""

import gc
import random
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decoded_segments import as_openai_has_them, decode_all
from refusals import refuses
from whisper import timing
from whisper.decoding import DecodingResult
from whisper.timing import WordTiming
from whisper.transcribe import transcribe

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.longform import driver
from espnet_medusa.inference.longform.driver import LongForm
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import LongRecording
from espnet_medusa.inference.longform.window import Clock, WindowDecoding
from espnet_medusa.inference.longform.word_times import TimedWord
from espnet_medusa.networks.whisper.tokens import make_tokenizer, read_whisper_tokens
from espnet_medusa.networks.whisper.transcript import TranscriptText

CONTEXT = 40  # positions of the decoder
TOKENIZER = make_tokenizer(51865)
TEXT = TranscriptText(TOKENIZER, read_whisper_tokens(TOKENIZER))
FIRST_TIME = TEXT.tokens.first_time
BY_CTC = {"word_timestamps": True, "word_times": "ctc"}


def made_up(rng: random.Random) -> WindowDecoding:
    """Random tokens with ordered timestamps, and scores on both sides of all thresholds."""
    tokens, time = [], FIRST_TIME + rng.randint(0, 50)
    for _ in range(rng.randint(0, 4)):
        tokens += [time, *(rng.choice([1, 220, 400, 4000]) for _ in range(rng.randint(0, 5)))]
        time = min(time + rng.randint(0, 600), FIRST_TIME + 1500)
        if rng.random() < 0.8:
            tokens.append(time)
        time = min(time + rng.choice([0, 0, 100]), FIRST_TIME + 1500)
    if rng.random() < 0.3:
        tokens += [time, 400]
    tokens += rng.choice([[], [], [500] * 60])  # a text that repeats itself
    return WindowDecoding(
        tuple(tokens), TEXT.decode(tokens), 0.0, rng.choice([-0.3, -0.9, -1.1, -2.0]),
        rng.choice([0.1, 0.1, 0.5, 0.7, 0.9]),
    )  # fmt: skip


def made_up_words(tokens, frames: int) -> list[tuple[str, float, float, float]]:
    """Text, start, end and probability of a word for each token: pauses, improbable words."""
    rng, found = random.Random(f"{tokens}"), []
    times = sorted(rng.uniform(0, frames / 100) for _ in range(2 * len(tokens)))
    for place in range(len(tokens)):
        text = rng.choice([" word", " word", "ly", ".", " (", "!", " -", "。"])
        start_s, end_s = (round(times[2 * place + side] / 0.02) * 0.02 for side in (0, 1))
        found.append((text, start_s, end_s, rng.choice([0.05, 0.3, 0.9])))
    return found


def find_alignment(model, tokenizer, text_tokens, mel, num_frames, **options):
    rows = zip(text_tokens, made_up_words(text_tokens, num_frames), strict=True)
    return [WordTiming(text, [token], *numbers) for token, (text, *numbers) in rows]


class OpenAIModel:
    """An openai-whisper model whose ``decode`` is random; ``asked`` has its arguments."""

    is_multilingual, num_languages, device = True, 99, torch.device("cpu")
    dims = SimpleNamespace(n_mels=80, n_audio_ctx=1500, n_text_ctx=CONTEXT)

    def __init__(self, seed):
        self.rng, self.asked = random.Random(seed), []

    def decode(self, mel, options):
        frames = int((mel != 0).any(0).sum())
        # As ``DecodingTask`` cuts it.
        self.asked.append((frames, [*options.prompt][-(CONTEXT // 2 - 1) :], options.temperature))
        one = made_up(self.rng)
        return DecodingResult(
            audio_features=None, language="en", tokens=[*one.tokens], text=one.text,
            avg_logprob=one.average_log_probability, no_speech_prob=one.no_speech_probability,
            temperature=options.temperature, compression_ratio=one.compression_ratio,
        )  # fmt: skip


class Decoder:
    """A window decoder whose ``decode`` is random, with a seed per recording."""

    window_frames, prompt_tokens, text = 3000, CONTEXT // 2 - 1, TEXT
    clock = Clock(FIRST_TIME, 2)

    def __init__(self):
        self.asked = {}

    def features(self, samples):
        seed = int(samples[0])
        self.asked[seed] = []
        return SimpleNamespace(frames=len(samples) // 160, seed=seed, rng=random.Random(seed))

    def detects(self, language):
        return False

    def choose_languages(self, windows, languages):
        return languages

    def encode(self, windows):
        return windows

    def align(self, encoded, row, frames, language, tokens):
        return [TimedWord(text, 1, *numbers) for text, *numbers in made_up_words(tokens, frames)]

    def decode(self, encoded, rows, attempt):
        found = []
        for row in rows:
            features, window = encoded[row.index]
            self.asked[features.seed].append((window.frames, [*row.prompt], attempt.temperature))
            one = replace(made_up(features.rng), temperature=attempt.temperature)
            found.append((one, DecodingStatistics(decoder_calls=1)))
        return found


def random_options(rng: random.Random, seconds: float) -> dict:
    """Random options; openai-whisper's seek is wrong for clips that end after the recording."""
    clips = sorted(round(rng.uniform(0, seconds), 2) for _ in range(rng.choice([0, 0, 1, 2, 3])))
    words = rng.random() < 0.6
    prompt = rng.choice([None, "Words of a user", " ".join(["many"] * 30)])
    return {
        "condition_on_previous_text": rng.random() < 0.6,
        "initial_prompt": prompt,
        # openai-whisper has no rule for an initial prompt that fills the whole prompt.
        "carry_initial_prompt": prompt == "Words of a user" and rng.random() < 0.5,
        "compression_ratio_threshold": rng.choice([None, 2.4]),
        "logprob_threshold": rng.choice([None, -1.0]),
        "no_speech_threshold": rng.choice([None, 0.6]),
        "clip_timestamps": clips,
        "word_timestamps": words,
        "hallucination_silence_threshold": rng.choice([None, 0.5, 2.0, 8.0]) if words else None,
    }


def noise(seconds: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.1, 0.5, int(16000 * seconds)).astype(np.float32)


def numbered(seconds: float, seeds) -> list[LongRecording]:
    """Recordings whose first sample is the seed of their decodings."""
    recordings = [LongRecording(seed, noise(seconds, seed)) for seed in seeds]
    for recording in recordings:
        recording.samples[0] = recording.key
    return recordings


@pytest.mark.parametrize("seed", range(60))
def test_windows_move_as_in_openai_whisper(seed, monkeypatch):
    monkeypatch.setattr(timing, "find_alignment", find_alignment)
    rng = random.Random(seed)
    seconds = [rng.choice([0.02, 12.3, 31.0, 75.55]) for _ in range(rng.choice([1, 3]))]
    options = random_options(rng, min(seconds))
    changes = {"clip_timestamps": tuple(options["clip_timestamps"])}
    changes["temperature_increment_on_fallback"] = rng.choice([None, 0.2, 0.4])
    ours = LongFormOptions(**options | changes)
    theirs = options | {"clip_timestamps": options["clip_timestamps"] or "0"}
    theirs |= {"temperature": tuple(ours.temperatures)}
    decoder, recordings, expected = Decoder(), [], {}
    for row, length in enumerate(seconds):
        samples = noise(length, row)
        model = OpenAIModel(1000 * seed + row)
        expected[row] = transcribe(model, samples, language="en", fp16=False, **theirs), model.asked
        samples[0] = 1000 * seed + row
        recordings.append(LongRecording(row, samples))
    done = decode_all(LongForm(decoder, ours, batch_size=rng.choice([1, 2, 3])), recordings)
    assert [*sorted(done)] == [*expected]
    for row, (result, asked) in expected.items():
        found = done[row]
        assert found.error is None
        assert decoder.asked[1000 * seed + row] == asked
        assert found.statistics.decoder_calls == len(asked)
        segments = [{"words": []} | segment for segment in result["segments"]]
        assert as_openai_has_them(found.segments) == segments
        assert found.text == result["text"]


class Failing(Decoder):
    """Fails for the features, the language or the batch of some recordings."""

    def features(self, samples):
        if int(samples[0]) == 1:
            raise MemoryError("no room for features")
        return super().features(samples)

    def choose_languages(self, windows, languages):
        if any(features.seed == 3 for features, _ in windows):
            raise InputError("language: xx; allowed: en")
        return super().choose_languages(windows, languages)

    def decode(self, encoded, rows, attempt):
        if any(features.seed == 4 for features, _ in encoded):
            raise RuntimeError("no memory left")
        return super().decode(encoded, rows, attempt)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_an_exception_only_ends_its_own_recording(batch_size):
    recordings = numbered(40, range(6))
    run = LongForm(Failing(), LongFormOptions(no_speech_threshold=None), batch_size)
    ended = decode_all(run, recordings)
    assert {key: str(one.error) for key, one in ended.items() if one.error} == {
        1: "no room for features", 3: "language: xx; allowed: en", 4: "no memory left"
    }  # fmt: skip
    assert len(ended) == 6 and all(one.segments for one in ended.values() if one.error is None)
    assert [*LongForm(Failing(), LongFormOptions())(recordings[1:2])][0].done


def test_batches_of_a_call_have_many_short_recordings_or_few_long_ones(monkeypatch):
    sizes, options = [], LongFormOptions(no_speech_threshold=None)

    class Counting(Decoder):
        def encode(self, windows):
            sizes.append(len(windows))
            return super().encode(windows)

    def decode(frames_each):
        sizes.clear()
        monkeypatch.setattr(driver, "RECORDING_FRAMES", frames_each)
        return decode_all(LongForm(Counting(), options, 2, batches=3), numbered(20, range(9)))

    ended, few = decode(4000), decode(900)
    assert max(sizes) == 2
    assert {key: one.text for key, one in ended.items()} == {key: few[key].text for key in few}
    decode(4000)
    assert sizes[0] == 4, "8000 frames are four recordings of 20 s"
    decode(9000)
    assert sizes[0] == 6 and sum(sizes) >= 9


class FailsInBatches(Decoder):
    def decode(self, encoded, rows, attempt):
        if len(encoded) > 1 and attempt.temperature > 0:
            raise RuntimeError("no memory left")
        decoded = super().decode(encoded, rows, attempt)
        return [(replace(one, trace={}), counted) for one, counted in decoded]


def test_a_window_whose_batch_failed_is_counted_once(caplog):
    """The first attempts of a batch succeed, and a later one fails."""
    options = LongFormOptions(no_speech_threshold=None)
    ended = decode_all(LongForm(FailsInBatches(), options, 3), numbered(40, range(3)))
    assert "a batch of 3 windows failed: no memory left (RuntimeError)" in caplog.text
    for one in ended.values():
        attempts = sum(len(passage["attempts"]) for passage in one.trace)
        assert one.error is None and one.statistics.decoder_calls == attempts


def test_finished_recordings_are_freed_without_garbage_collection():
    """The garbage collector counts objects, not bytes: hours of audio would stay in memory."""
    run = LongForm(Decoder(), LongFormOptions(no_speech_threshold=None))
    gc.disable()
    try:
        held = []
        for step in run(numbered(70, range(3))):
            if step.done:
                assert step.recording.segments
                held.append(weakref.ref(step.recording))
            del step
        assert [ref() for ref in held] == [None] * 3
    finally:
        gc.enable()


@refuses(
    ({"temperature": -0.1}, "temperature: -0.1 is too small; allowed: 0 or more"),
    ({"temperature": float("inf")}, "temperature: inf; allowed: a finite number"),
    ({"compression_ratio_threshold": float("nan")}, "threshold: nan; allowed: a finite number"),
    ({"temperature_increment_on_fallback": -0.2}, "on_fallback: -0.2 is too small; allowed: 0"),
    ({"best_of": 0}, "best_of: 0 is too small; allowed: 1 or more"),
    ({"clip_timestamps": (3.0, 1.0)}, r"clip_timestamps: 3.0,1.0; allowed: start,end"),
    ({"clip_timestamps": (-1.0,)}, "clip_timestamps: -1.0; allowed"),
    ({"hallucination_silence_threshold": 2.0}, "allowed with word_timestamps: true"),
    ({"max_initial_timestamp": -1.0}, "max_initial_timestamp: -1.0 is too small"),
    ({"vad_parameters": {"treshold": 0.4}}, "unknown option 'treshold' .did you mean"),
    ({"vad_parameters": {"threshold": 0.4}}, "vad_para.*; allowed with vad_filter: true"),
    (BY_CTC | {"word_times": "cct"}, "'cct' is not known .*: attention, ctc"),
    ({"word_times": "ctc"}, "word_times: ctc; allowed with word_timestamps: true"),
    (BY_CTC | {"hallucination_silence_threshold": 2.0}, "2.0; allowed with word_times: atten"),
)
def test_bad_options_are_refused(options):
    LongFormOptions(**options)


def test_temperatures_equal_those_of_openais_command():
    for start in (0.0, 0.3, 1.0):
        for step in (0.2, 0.25, 0.5):
            options = LongFormOptions(temperature=start, temperature_increment_on_fallback=step)
            assert options.temperatures == np.arange(start, 1.0 + 1e-6, step).tolist()
    alone = LongFormOptions(temperature=0.4, temperature_increment_on_fallback=None)
    assert alone.temperatures == [0.4]
