"""Live transcription over scripted streams: nothing is lost, revised or decoded out of bounds."""

import random

import numpy as np
import pytest
from cases import cases
from refusals import refuses
from scripted_stream import RATE_HZ, TEXT, ScriptedDecoder, random_stream

from espnet_medusa.inference.live.live_options import LiveOptions
from espnet_medusa.inference.live.live_transcriber import LiveTranscriber
from espnet_medusa.inference.longform.long_form_options import LongFormOptions


def make(decoder, detects_speech=True, **options):
    given = {"skip_silence": detects_speech}
    given |= {name: options.pop(name) for name in [*options] if hasattr(LongFormOptions, name)}
    live = LiveTranscriber(decoder, LongFormOptions(**given), LiveOptions(**options), "en")
    if detects_speech:
        live.audio.speech = decoder.stream
    return live


def run(live, samples, piece_s=0.1, rng=None):
    """Stream pieces; return the updates."""
    updates, place = [], 0
    while place < len(samples):
        size = round((piece_s if rng is None else rng.uniform(0, 3)) * RATE_HZ)
        live.add(samples[place : place + size])
        place += size
        if (update := live.update()) is not None:
            updates.append(update)
            longest = live.decoder.window_frames * 160 + 160
            assert len(live.audio.samples) <= longest
    return [*updates, live.finish()]


def text_of(updates):
    return "".join(word.text for update in updates for word in update.confirmed)


@cases(*((seed, pause, policy) for seed in range(4) for pause in (0.0, 0.15, 0.5)
         for policy in ("agreement", "attention")))  # fmt: skip
def test_all_words_are_confirmed_once(seed, pause, policy):
    stream = random_stream(seed, pause_s=pause)
    decoder = ScriptedDecoder(stream)
    live = make(decoder, live_policy=policy, live_margin=0.5, buffer_seconds=6)
    updates = run(live, stream.samples)
    assert text_of(updates) == stream.text
    assert not updates[-1].tentative and not len(live.audio.samples)
    segments = [segment for update in updates for segment in update.segments]
    assert "".join(segment.text for segment in segments) == stream.text
    words = [word for segment in segments for word in segment.words]
    assert [word.text for word in words] == [text for text, _, _ in stream.words]
    for word, (_, start_s, end_s) in zip(words, stream.words, strict=True):
        assert word.start_s == pytest.approx(start_s, abs=0.02)
        assert word.end_s == pytest.approx(end_s, abs=0.02)
    tokens = [token for segment in segments for token in segment.tokens]
    assert TEXT.decode(tokens) == stream.text


def test_the_prefix_is_the_confirmed_text_and_the_prompt_the_text_before():
    stream = random_stream(5, count=80)
    decoder = ScriptedDecoder(stream)
    live = make(decoder, buffer_seconds=5, live_prompt_tokens=500)
    confirmed = ""
    for update in run(live, stream.samples):
        confirmed += "".join(word.text for word in update.confirmed)
    for _, _, row in decoder.rows:
        assert TEXT.decode([*row.prompt, *row.prefix]) in confirmed
    assert all(end_s - start_s <= 7 for start_s, end_s, _ in decoder.rows)
    assert any(row.prompt and row.prefix and row.draft for _, _, row in decoder.rows)


@cases(*((seed,) for seed in range(3)))
def test_pieces_of_any_size(seed):
    """Late updates take all pieces; also pieces that are longer than the window."""
    rng, (stream, late, at_end) = (
        random.Random(seed),
        (random_stream(seed, count=150, pause_s=0.1) for _ in range(3)),
    )
    live = make(ScriptedDecoder(stream))
    assert text_of(run(live, stream.samples, rng=rng)) == stream.text
    live = make(ScriptedDecoder(late))
    live.add(late.samples)
    assert text_of([live.update(), live.finish()]) == late.text
    live = make(ScriptedDecoder(at_end))
    live.add(at_end.samples)
    assert text_of([live.finish()]) == at_end.text


def test_the_same_update_times_give_the_same_updates():
    found = []
    for piece in (160, 800, 8000):
        stream = random_stream(7, pause_s=0.2)
        live, updates = make(ScriptedDecoder(stream)), []
        for first in range(0, len(stream.samples), piece):
            live.add(stream.samples[first : first + piece])
            updates.append(live.update())
        updates.append(live.finish())
        found.append([(one.confirmed, one.tentative) for one in updates if one is not None])
    assert found[0] == found[1] == found[2]


def test_silence_is_not_decoded_and_is_freed():
    stream = random_stream(0, count=10)
    stream.words = [(text, start_s + 20, end_s + 20) for text, start_s, end_s in stream.words]
    stream.length_s = 60.0
    decoder = ScriptedDecoder(stream)
    live = make(decoder)
    updates = run(live, stream.samples)
    assert text_of(updates) == stream.text
    assert all(end_s > 20 and start_s < 26 for start_s, end_s, _ in decoder.rows)
    assert all(update.start_s > update.audio_s - 1 for update in updates[:30])
    # After the pause of 0.6 s all is confirmed.
    end_s = stream.words[-1][2]
    last = next(one for one in updates if text_of([one]).endswith(stream.words[-1][0]))
    assert last.audio_s <= end_s + 0.6 + 0.5


@cases((True,), (False,))
def test_the_oldest_words_are_confirmed_when_the_window_is_full(detects_speech):
    stream = random_stream(3, count=100)
    decoder = ScriptedDecoder(stream)
    updates = run(make(decoder, detects_speech, live_agreement=100), stream.samples)
    assert text_of(updates) == stream.text
    first = next(update for update in updates if update.confirmed)
    assert first.audio_s >= decoder.window_frames / 100
    assert all(end_s - start_s <= 10 for start_s, end_s, _ in decoder.rows)


def test_a_loop_confirms_nothing_and_drops_the_prompt():
    stream = random_stream(4, count=60)
    decoder = ScriptedDecoder(stream, loops_at=(12.0, 13.0))
    live = make(decoder, buffer_seconds=6)
    updates = run(live, stream.samples)
    assert text_of(updates) == stream.text
    looping = [row for _, end_s, row in decoder.rows if 12.0 <= end_s < 13.0]
    assert looping[0].prompt and not looping[-1].prompt
    inside = [one for one in updates if 12.0 <= one.audio_s < 13.0]
    assert inside and not any(one.confirmed or one.tentative for one in inside)


def test_a_loop_at_the_end_confirms_the_text_before():
    stream = random_stream(4, count=30)
    decoder = ScriptedDecoder(stream, loops_at=(stream.length_s - 0.05, stream.length_s + 1))
    text = text_of(run(make(decoder), stream.samples, piece_s=0.3))
    assert stream.text.startswith(text) and len(stream.text) - len(text) < 15


def test_a_text_that_ends_early_is_continued():
    stream = random_stream(8, count=50)
    decoder = ScriptedDecoder(stream, stops_s=stream.words[12][2] - 0.05)
    updates = run(make(decoder, buffer_seconds=20), stream.samples)
    assert text_of(updates) == stream.text
    seen = next(one for one in updates if stream.words[13][0] in text_of([one]))
    assert seen.audio_s < stream.words[13][2] + 4


def test_memory_is_bounded():
    stream = random_stream(9, count=250, pause_s=0.05)
    live = make(ScriptedDecoder(stream))
    run(live, stream.samples)
    assert len(live.prompt) <= live.decoder.prompt_tokens
    assert not live.words and not live.before and not live.audio.pieces
    assert stream.forgotten > RATE_HZ * (stream.length_s - 2)


def test_a_delay_is_reported_for_new_words():
    stream = random_stream(2)
    for update in run(make(ScriptedDecoder(stream)), stream.samples):
        assert (update.delay_s is None) == (not update.confirmed)
        if update.confirmed:
            assert -0.1 < update.delay_s < 3


@refuses(
    ({"update_seconds": 0}, "update_seconds: 0"),
    ({"live_policy": "x"}, "live_policy"),
    ({"live_agreement": 0}, "live_agreement: 0"),
    ({"buffer_seconds": 31}, "buffer_seconds: 31"),
    ({"live_margin": float("nan")}, "live_margin"),
)
def test_wrong_options(options):
    LiveOptions(**options)


def test_no_audio():
    live = make(ScriptedDecoder(random_stream(0)))
    assert live.update() is None
    assert text_of([live.finish()]) == ""
    live = make(ScriptedDecoder(random_stream(0)), detects_speech=False)
    live.add(np.zeros(0, np.float32))
    live.add(np.zeros(90, np.float32))
    assert text_of([live.finish()]) == ""
