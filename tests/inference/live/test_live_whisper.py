"""Live transcription with random Whispers: drafts change no update, in float32 and int8."""

import random

import pytest
import torch
from cases import cases
from live_updates import UNGUARDED, repeat_without_drafts, stream
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from refusals import refuses

from espnet_medusa.decoding.runtime.precision import has_kernels
from espnet_medusa.inference.longform.recording import Row
from espnet_medusa.inference.longform.window import Window
from espnet_medusa.inference.longform.window_steps import Attempt
from espnet_medusa.inference.speech2text import Speech2Text

INT8 = {"encoder_precision": "int8", "decoder_precision": "int8"}
needs_kernels = pytest.mark.skipif(not has_kernels(torch.device("cpu")), reason="no CPU kernels")


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
        **UNGUARDED, update_seconds=1.0, buffer_seconds=rng.choice([3, 6, 20]),
        live_policy=rng.choice(["agreement", "attention"]), initial_prompt="a prompt",
        live_agreement=3, live_margin=rng.choice([0.2, 1.0]),
    )  # fmt: skip
    repeated = repeat_without_drafts(live)
    updates = stream(live, noise_and_silence(20, seed), rng)
    for _, (drafted, _), (plain, _) in repeated:
        assert drafted.tokens == plain.tokens
        assert drafted.average_log_probability == pytest.approx(
            plain.average_log_probability, abs=1e-4
        )
    text = "".join(word.text for update in updates for word in update.confirmed)
    segments = [segment for update in updates for segment in update.segments]
    assert text == "".join(segment.text for segment in segments) != ""
    assert all(one.start_s <= one.end_s <= 20.01 for one in segments)
    with_draft = [one for one in repeated if one.row.draft]
    some, more = (
        sum(counts.decoder_calls for _, counts in decodings)
        for decodings in zip(*(one[1:] for one in with_draft), strict=True)
    )
    assert 0 < some <= more
    assert live.statistics.decoder_calls == sum(one.drafted[1].decoder_calls for one in repeated)


def test_the_prefix_is_kept_and_begin_suppression_does_not_follow_it(models):
    """After a prefix a text may end at once; its scores are those of the whole text."""
    model = models()
    live = model.live(**UNGUARDED)
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
    live = models(language="detect").live(**UNGUARDED)
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
