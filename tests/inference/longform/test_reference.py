"""Long audio against openai-whisper's ``transcribe``, with random models."""

import copy
import random
import sys
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from decoded_segments import as_openai_has_them, assert_same, decode_samples
from drafted_whisper import drafted, with_model, with_options
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from whisper import timing
from whisper.decoding import MaximumLikelihoodRanker
from whisper.transcribe import transcribe

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.acceptance import build_rule
from espnet_medusa.decoding.search.greedy import greedy_search, sampling_search
from espnet_medusa.decoding.search.search_options import SearchOptions
from espnet_medusa.inference import whisper_windows
from espnet_medusa.inference.audio_batch import model_encoder
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import LongRecording, Row
from espnet_medusa.inference.longform.window import Window
from espnet_medusa.inference.longform.window_steps import Attempt
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.whisper_windows import WhisperWindows
from espnet_medusa.networks.whisper.pretrained import DECODER, ENCODER, open_whisper

ALONE = {"temperature_increment_on_fallback": None}  # random samples differ


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models by seed, openai-whisper's and ours with its weights; ESPnet builds one of them."""
    path, made = str(tmp_path_factory.mktemp("models") / "whisper.pt"), []

    @cache
    def get(seed):
        model = openai_whisper(seed, end=[0.0, 4.0, 8.0][seed], times=[0.0, -2.0, 0.0][seed])
        save_openai_whisper(model, path)
        first = made[0] if made else Speech2Text.from_pretrained(path, search="greedy")
        made.append(with_weights(first, path) if made else first)
        return model, made[-1]

    return get


def with_weights(speech2text, path):
    whisper, asr_model = open_whisper(path), copy.deepcopy(speech2text.asr_model)
    for half, module in ((ENCODER, asr_model.encoder), (DECODER, asr_model.decoder)):
        module.whisper.load_state_dict(whisper.weights(half))
    strategy = speech2text.search.strategy
    parts = strategy.rule, strategy.scoring.constraints
    return with_model(
        speech2text,
        trained=replace(speech2text.model.trained, asr_model=asr_model),
        encoder=model_encoder(asr_model),
        search=greedy_search(build_runtime(asr_model.decoder), *parts),
    )


def assert_reference(result, segments):
    for theirs, ours in zip(result["segments"], as_openai_has_them(segments), strict=True):
        expected = {"words": []} | theirs | {"id": ours["id"]}
        for name, tolerance in {"avg_logprob": 1e-4, "no_speech_prob": 1e-6}.items():
            expected[name] = pytest.approx(theirs[name], abs=tolerance)
        for word in expected["words"]:
            word["probability"] = pytest.approx(word["probability"], abs=1e-5)
        assert ours == expected


def transcribed_by_both(models, samples, **options):
    """Return openai-whisper's result, and our segments, of greedy search at temperature 0."""
    model, speech2text = models
    result = transcribe(model, samples, temperature=0.0, language="en", fp16=False, **options)
    return result, [*speech2text.transcribe(samples, **options, **ALONE)]


@pytest.mark.parametrize("trial", range(3))
@pytest.mark.parametrize("seed", range(3))
def test_segments_equal_openai_whisper(models, seed, trial):
    rng = random.Random(f"{seed} {trial}")
    samples = noise_and_silence([65, 33, 3][trial], 10 * seed + trial)
    options = {
        "condition_on_previous_text": trial == 0,
        "initial_prompt": rng.choice([None, "Words of a user"]),
        "no_speech_threshold": rng.choice([None, 0.6]),
        "without_timestamps": trial == 1,
        "max_initial_timestamp": rng.choice([1.0, 3.0, None]),
    }
    result, segments = transcribed_by_both(models(seed), samples, **options)
    assert_reference(result, segments)
    assert segments and models(seed)[1].statistics.decoder_calls > 0


def any_length(encoder, mel):
    """openai-whisper's encoder over (B, bins, T) of any length."""
    hidden = torch.nn.functional.gelu(encoder.conv1(mel))
    hidden = torch.nn.functional.gelu(encoder.conv2(hidden)).transpose(1, 2)
    hidden = hidden + encoder.positional_embedding[: hidden.size(1)]
    for block in encoder.blocks:
        hidden = block(hidden)
    return encoder.ln_post(hidden)


@pytest.mark.parametrize(("seed", "seconds"), [(0, 33), (1, 65.37), (2, 3)])
def test_unpadded_windows_equal_openai_whisper_without_padding(models, monkeypatch, seed, seconds):
    model, speech2text = models(seed)
    samples, options = noise_and_silence(seconds, seed), {"no_speech_threshold": None}
    padded = [*speech2text.transcribe(samples, **options, **ALONE)]
    monkeypatch.setattr(sys.modules["whisper.transcribe"], "pad_or_trim", lambda mel, frames: mel)
    monkeypatch.setattr(model.encoder, "forward", partial(any_length, model.encoder))
    monkeypatch.setattr(speech2text.model.asr_model.encoder, "window", "audio")
    result, segments = transcribed_by_both(models(seed), samples, **options)
    assert_reference(result, segments)
    assert segments and segments != padded


def test_words_of_unpadded_windows_do_not_depend_on_the_batch(models, monkeypatch):
    _, speech2text = models(1)
    monkeypatch.setattr(speech2text.model.asr_model.encoder, "window", "audio")
    windows = WhisperWindows(speech2text.model, LongFormOptions(word_timestamps=True))
    samples = noise_and_silence(20, 1)
    long, short = (windows.features(samples[: 16000 * seconds]) for seconds in (20, 4))
    tokens = windows.text.encode(" Words that nobody has said")
    beside = windows.encode([(long, Window(0, 2000)), (short, Window(0, 400))])
    alone = windows.encode([(short, Window(0, 400))])
    found, expected = (
        windows.align(encoded, row, 400, "en", tokens) for encoded, row in ((beside, 1), (alone, 0))
    )
    assert len(found) == len(expected) == 5
    for one, other in zip(found, expected, strict=True):
        assert (one.text, one.start_s, one.end_s) == (other.text, other.start_s, other.end_s)
        assert one.probability == pytest.approx(other.probability, rel=1e-4)


def test_words_equal_openai_whisper(models, monkeypatch):
    # Without numba, whose compilation takes longer than the rest.
    for name in ("dtw_cpu", "backtrace"):
        monkeypatch.setattr(timing, name, getattr(timing, name).py_func)
    options = {"word_timestamps": True, "no_speech_threshold": None}
    result, segments = transcribed_by_both(models(1), noise_and_silence(36, 4), **options)
    # With a single encoder frame, openai-whisper's attention is NaN.
    result["segments"] = [one for one in result["segments"] if one["seek"] < 3596]
    segments = [one for one in segments if one.seek < 3596]
    assert_reference(result, segments)
    assert sum(len(segment.words) for segment in segments) > 3


def test_beam_search_equals_openai_whisper(models):
    model, plain = models(1)
    samples = noise_and_silence(31, 5)
    options = {"temperature": 0.0, "beam_size": 2, "length_penalty": 0.4}
    result = transcribe(model, samples, language="en", fp16=False, **options)
    speech2text = drafted(plain, 2, length_penalty=0.4)
    assert_reference(result, [*speech2text.transcribe(samples, **ALONE)])
    assert speech2text.statistics.decoder_calls < speech2text.statistics.tokens


def test_language_is_detected_as_by_openai_whisper(models):
    model, speech2text = models(0)
    samples = noise_and_silence(5, 3)
    result = transcribe(model, samples, temperature=0.0, fp16=False)
    run = speech2text.long_form(LongFormOptions(**ALONE))
    (*_, last) = run([LongRecording("key", samples, "detect")])
    assert last.recording.language == result["language"] != "en" and last.done
    assert last.recording.text == result["text"]
    assert_reference(result, last.recording.segments)


def test_drafts_and_batches_keep_the_segments(models):
    """With a draft model, windows with prompts of different lengths, and sampling."""
    _, plain = models(0)
    samples = [noise_and_silence(seconds, seconds) for seconds in (4, 61)]
    settings = LongFormOptions(logprob_threshold=-4.2, temperature_increment_on_fallback=0.5)
    alone = [[*plain.transcribe(one, **vars(settings))] for one in samples]
    calls = plain.statistics.decoder_calls
    together = decode_samples(drafted(plain), samples, settings, 3)
    for one, segments in zip(together, alone, strict=True):
        assert_same(one.segments, segments)
    assert len({segment.temperature for segment in alone[1]}) > 1
    assert together[1].statistics.decoder_calls < calls


def test_lossy_rules_keep_the_order_of_timestamps(models):
    """top_m of 1 is exact; the other rules accept some drafts of another model."""
    (_, plain), (_, by) = models(1), models(2)
    samples, options = noise_and_silence(34, 8), {"no_speech_threshold": None, **ALONE}
    expected = [*plain.transcribe(samples, **options)]
    for draft in (None, by):
        rule = build_rule(SearchOptions(acceptance="top_m", top_m=1))
        assert_same(drafted(plain, rule=rule, by=draft).transcribe(samples, **options), expected)
    for acceptance in (
        SearchOptions(acceptance="top_m", top_m=5000),
        SearchOptions(acceptance="typical", typical_epsilon=1e-6, typical_alpha=1e-6),
    ):
        speech2text = drafted(plain, rule=build_rule(acceptance), by=by)
        segments = [*speech2text.transcribe(samples, **options)]
        tokens = [[one.tokens for one in some] for some in (segments, expected)]
        assert tokens[0] != tokens[1], "drafts that are not the best are accepted"
        assert sum(speech2text.statistics.accepted) > 0
        times = [(one.start_s, one.end_s) for one in segments if one.tokens]
        assert times and all(start_s < end_s for start_s, end_s in times)
        assert [start_s for start_s, _ in times] == sorted(start_s for start_s, _ in times)
        for segment in segments:
            timed = [token >= plain.whisper.tokens.first_time for token in segment.tokens]
            assert not segment.tokens or timed[0] and sum(timed) <= 2


@pytest.mark.parametrize("seed", range(3))
def test_best_of_takes_the_likeliest_sample(models, monkeypatch, seed):
    _, speech2text = models(seed)
    samples, made = noise_and_silence(8, seed), []

    def recorded(decoder, constraints, temperature, seed):
        search = sampling_search(decoder, constraints, temperature, seed)

        def run(*parts, **others):
            states = search(*parts, **others)
            made.append((seed, states))
            return states

        run.planner = search.planner
        return run

    monkeypatch.setattr(whisper_windows, "sampling_search", recorded)
    options = LongFormOptions(temperature=0.7, best_of=4, **ALONE)
    decoder = WhisperWindows(speech2text.model, options)
    encoded = decoder.encode([(decoder.features(samples), Window(0, 800))])
    ((found, statistics),) = decoder.decode(encoded, [Row(0, [], "en")], Attempt(0.7))
    draws = [(state.n_best[0], state.statistics) for _, (state,) in made]
    assert [number for number, _ in made] == [*range(4)]
    tokens = [best.tokens[:-1] for best, _ in draws]
    assert len({*map(tuple, tokens)}) > 1 and all(tokens)
    (chosen,) = MaximumLikelihoodRanker(None).rank([tokens], [[best.score for best, _ in draws]])
    assert [*found.tokens] == tokens[chosen]
    mean = draws[chosen][0].score / (len(tokens[chosen]) + 1)
    assert found.average_log_probability == pytest.approx(mean)
    assert statistics.decoder_calls == sum(one.decoder_calls for _, one in draws)
    ((cold, _),) = decoder.decode(encoded, [Row(0, [], "en")], Attempt())
    assert len(made) == 4 and cold.average_log_probability > found.average_log_probability


def test_unsupported_searches_are_refused(models):
    with pytest.raises(InputError, match="forced_prefix: .*; allowed with long audio: none"):
        with_options(models(0)[1], forced_prefix=[5]).transcribe(noise_and_silence(1, 0))
