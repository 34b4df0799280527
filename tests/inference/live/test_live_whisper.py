"""Live transcription with random Whispers: drafts change no update, in float32 and int8."""

import random

import pytest
import torch
from cases import cases
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from refusals import refuses

from espnet_medusa.decoding.runtime.precision import has_kernels
from espnet_medusa.inference.longform.recording import Row
from espnet_medusa.inference.longform.window import Window
from espnet_medusa.inference.longform.window_steps import Attempt
from espnet_medusa.inference.speech2text import Speech2Text

INT8 = {"encoder_precision": "int8", "decoder_precision": "int8"}
needs_kernels = pytest.mark.skipif(not has_kernels(torch.device("cpu")), reason="no CPU kernels")
OPTIONS = {"skip_silence": False, "no_speech_threshold": None, "compression_ratio_threshold": None}


@pytest.fixture(scope="session")
def whisper(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper") / "whisper.pt"
    return save_openai_whisper(openai_whisper(4, end=3.0, text_context=96), path)


@pytest.fixture(scope="session")
def models(whisper):
    """Each model once, by its options."""
    opened = {}

    def open_model(**options):
        key = tuple(options.items())
        if key not in opened:
            given = {"search": "greedy", "language": "en"} | options
            opened[key] = Speech2Text.from_pretrained(str(whisper), **given)
        return opened[key]

    return open_model


def stream(live, samples, rng):
    updates, place = [], 0
    while place < len(samples):
        size = round(16000 * rng.choice([0.01, 0.3, 0.5, 0.9, 4.0]))
        live.add(samples[place : place + size])
        place += size
        if (update := live.update()) is not None:
            updates.append(update)
    return [*updates, live.finish()]


def check_each_update(live):
    """Decode each buffer also without drafts, and compare; return the numbers of calls."""
    decode, calls = live.decoder.decode, []

    def both(encoded, rows, attempt):
        found = decode(encoded, rows, attempt)
        plain = decode(encoded, [rows[0]._replace(draft=None)], attempt)
        ((drafted, counts),), ((other, more),) = found, plain
        assert drafted.tokens == other.tokens
        assert drafted.average_log_probability == pytest.approx(
            other.average_log_probability, abs=1e-4
        )
        calls.append((counts.decoder_calls, more.decoder_calls, rows[0]))
        return found

    live.decoder.decode = both
    return calls


@cases(
    ({}, 1),
    ({}, 2),
    pytest.param(INT8, 3, marks=needs_kernels),
    pytest.param(INT8, 4, marks=needs_kernels),
    ({"search": "beam", "beam_size": 2, "patience": 1.0}, 5),
)
def test_drafts_change_no_update(options, seed, models):
    rng = random.Random(seed)
    live = models(**options).live(
        **OPTIONS, update_seconds=1.0, buffer_seconds=rng.choice([3, 6, 20]),
        live_policy=rng.choice(["agreement", "attention"]), initial_prompt="a prompt",
        live_agreement=3, live_margin=rng.choice([0.2, 1.0]),
    )  # fmt: skip
    calls = check_each_update(live)
    updates = stream(live, noise_and_silence(20, seed), rng)
    text = "".join(word.text for update in updates for word in update.confirmed)
    segments = [segment for update in updates for segment in update.segments]
    assert text == "".join(segment.text for segment in segments) != ""
    assert all(one.start_s <= one.end_s <= 20.01 for one in segments)
    assert any(row.draft for _, _, row in calls)
    drafted = [(some, more) for some, more, row in calls if row.draft]
    assert sum(some for some, _ in drafted) <= sum(more for _, more in drafted)
    assert live.statistics.decoder_calls == sum(some for some, _, _ in calls)


def test_the_prefix_is_kept_and_begin_suppression_does_not_follow_it(models):
    """After a prefix a text may end at once; its scores are those of the whole text."""
    model = models()
    live = model.live(**OPTIONS)
    features = live.decoder.features(noise_and_silence(3, 1))
    encoded = live.decoder.encode([(features, Window(0, features.frames))])
    how = Attempt(0.0, timestamps=False)
    ((whole, _),) = live.decoder.decode(encoded, [Row(0, [], "en")], how)
    assert whole.tokens
    for count in (1, len(whole.tokens) // 2, len(whole.tokens)):
        row = Row(0, [], "en", None, whole.tokens[:count])
        ((rest, _),) = live.decoder.decode(encoded, [row], how)
        # Whole texts may end at the maximum length.
        assert (whole.tokens[:count] + rest.tokens)[: len(whole.tokens)] == whole.tokens


def test_the_language_is_detected_until_words_are_confirmed(models):
    live = models(language="detect").live(**OPTIONS)
    live.add(noise_and_silence(4, 1))
    update = live.update()
    assert update.language in live.decoder.model.prompts.tokens.languages
    assert live.finish().language is not None


@refuses(
    ({"clip_timestamps": [1.0]}, "clip_timestamps: .* not allowed live"),
    ({"vad_filter": True}, "vad_filter: True; not allowed live"),
    ({"temperature": 0.5}, "temperature: 0.5; not allowed live"),
    ({"language": "xx"}, "language: 'xx'"),
    ({"nothing": 1}, "nothing"),
)
def test_wrong_options(options, models):
    models().live(**options)
