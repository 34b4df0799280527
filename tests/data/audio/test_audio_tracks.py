"""Files with several audio tracks: the chosen one is decoded, and a line names it."""

from fractions import Fraction

import av
import numpy as np
import pytest
import soundfile
from media_files import speechlike
from refusals import assert_refused

from espnet_medusa.data.audio.reader import AudioError, probe_audio, read_audio
from espnet_medusa.data.audio.reading import AudioReading
from espnet_medusa.data.errors import InputError

RATES = [16000, 8000]  # of the tracks


@pytest.fixture
def film(tmp_path):
    """A file with two tracks, of which the second is the default."""
    path = tmp_path / "film.mkv"
    with av.open(str(path), "w") as output:
        streams = [output.add_stream("pcm_s16le", rate=rate, layout="mono") for rate in RATES]
        for stream, language in zip(streams, ["eng", "deu"], strict=True):
            stream.metadata["language"] = language
        streams[1].disposition = av.stream.Disposition.default
        for place, (stream, rate) in enumerate(zip(streams, RATES, strict=True)):
            values = (speechlike(1.0, rate, place) * 32767).astype(np.int16)[None]
            frame = av.AudioFrame.from_ndarray(values, format="s16", layout="mono")
            frame.rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
            for packet in (*stream.encode(frame), *stream.encode(None)):
                output.mux(packet)
    return path


@pytest.mark.parametrize("track", [None, 1, 2])
def test_the_chosen_track_is_decoded_and_named(film, track, caplog):
    number = track or 2
    reading = AudioReading(audio_track=track)
    samples, rate_hz = read_audio(str(film), reading=reading)
    assert rate_hz == RATES[number - 1] == probe_audio(str(film), reading=reading).rate_hz
    expected = speechlike(1.0, rate_hz, number - 1)
    np.testing.assert_allclose(samples, expected, atol=1e-4)
    names = ["1 (eng, pcm_s16le, 1 channel)", "2 (deu, pcm_s16le, 1 channel)"]
    chosen = names.pop(number - 1)
    line = f"{film}: audio track {chosen} is decoded; others (audio_track): {names[0]}"
    assert caplog.messages == [line]


def test_a_missing_track_is_a_failure_of_the_file(film, tmp_path):
    third = AudioReading(audio_track=3)
    message = "film.mkv: audio_track: 3; allowed: 1 to 2"
    for read in (read_audio, probe_audio):
        assert_refused(message, read, str(film), reading=third, error=AudioError)
    path = tmp_path / "talk.wav"
    soundfile.write(path, speechlike(0.5), 16000)
    message = "talk.wav: audio_track: 3; allowed: 1, its only one"
    assert_refused(message, read_audio, str(path), reading=third, error=AudioError)
    samples, _ = read_audio(str(path), reading=AudioReading(audio_track=1))
    np.testing.assert_array_equal(samples, read_audio(str(path))[0])
    assert_refused("audio_track: 0 is too small", AudioReading, audio_track=0, error=InputError)
