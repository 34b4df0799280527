"""Folders of media files: which are transcribed, with which times, and damaged ones."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
from experiment import read_lines
from media_files import speechlike
from refusals import assert_refused
from timed_media import write_timed

from espnet_medusa.data.audio.reading import AudioReading
from espnet_medusa.decoding.search.statistics import read_statistics
from espnet_medusa.transcription.page import content
from espnet_medusa.transcription.recordings import find_recordings
from espnet_medusa.transcription.transcribe import transcribe

MEDIA = (
    "mp2", "ts", "weba", "ac3", "tta", "3g2", "ogv", "mpga", "WEBM", "mpeg", "m2ts", "mxf", "rm",
    "voc", "dts", "f4v", "g722", "oma",
)  # fmt: skip


def test_files_of_folders_by_suffix(tmp_path, caplog, in_folder):
    for suffix in MEDIA:
        (tmp_path / "talks" / suffix).mkdir(parents=True)
        (tmp_path / "talks" / suffix / f"a.{suffix}").touch()
    assert len(find_recordings(["talks"])) == len(MEDIA) and not caplog.messages
    for name in ("notes.txt", "b.jpg", "code.mts", "no_suffix", ".hidden.txt"):
        (tmp_path / "talks" / name).write_text("const a = 1;")
    assert len(find_recordings(["talks"])) == len(MEDIA)
    (line,) = caplog.messages
    assert line == (
        "talks: 4 of 22 files are not audio by their suffix and are skipped: b.jpg, code.mts, "
        "no_suffix, ... (4 in all); to transcribe one, give its own name"
    )
    assert [one.name for one in find_recordings(["talks/no_suffix"])] == ["no_suffix"]


def test_times_and_damage_in_the_command(transcribe_folder, tmp_path, caplog):
    folder = tmp_path / "talks"
    folder.mkdir()
    write_timed(folder / "late.ts", "aac", start_s=4.9, video=("mpeg2video", 0.0, 6.0))
    soundfile.write(folder / "cut.wav", speechlike(4.0), 16000)
    data = (folder / "cut.wav").read_bytes()
    (folder / "cut.wav").write_bytes(data[: len(data) // 2])
    assert transcribe_folder(folder, "--output_format", "json") == 0
    assert f"{folder}/cut.wav: is damaged: it ends at 2.00 s" in caplog.text
    seconds = {key: one.audio_seconds for key, one in statistics(tmp_path).items()}
    assert seconds == pytest.approx({"late": 6.88, "cut": 2.0}, abs=0.05)
    assert json.loads((tmp_path / "out" / "late.json").read_text())["segments"]

    refuse = ["--on_bad_audio", "refuse", "--player_times", "false"]
    assert transcribe_folder(folder, "--output_format", "json", *refuse) == 3
    failed = read_lines(tmp_path / "out" / "failed_utterances")
    assert failed.keys() == {"cut"} and "is truncated" in failed["cut"]
    assert statistics(tmp_path)["late"].audio_seconds == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("player_times", [True, False])
def test_a_page_has_the_audio_that_was_decoded(player_times, transcribe_folder, tmp_path, caplog):
    folder = tmp_path / "talks"
    folder.mkdir()
    write_timed(folder / "late.mkv", "aac", start_s=4.9, video=("mpeg2video", 0.0, 6.0))
    soundfile.write(folder / "cut.wav", speechlike(4.0), 16000)
    data = (folder / "cut.wav").read_bytes()
    (folder / "cut.wav").write_bytes(data[: len(data) // 2])
    words = "--output_format", "html", "--embed_audio", "true", "--player_times", player_times
    assert transcribe_folder(folder, *words) == 0
    assert caplog.text.count("cut.wav: is damaged") == 1, "not again for the page"
    seconds = {"cut": 2.0, "late": 6.88 if player_times else 2.0}
    for name, expected in seconds.items():
        page = (tmp_path / "out" / f"{name}.html").read_text()
        flac = base64.b64decode(re.search('audio/flac;base64,([^"]+)', page)[1])
        assert soundfile.info(io.BytesIO(flac)).duration == pytest.approx(expected, abs=0.05)


def test_a_browser_plays_only_what_was_decoded(tmp_path, caplog):
    write_timed(tmp_path / "late.m4a", "aac")
    for reading in (AudioReading(player_times=False), AudioReading(audio_track=1)):
        assert content.audio(tmp_path / "late.m4a", tmp_path, False, reading) is None
    assert "not a file that browsers play as it was decoded; --embed_audio true" in caplog.text
    assert content.audio(tmp_path / "late.m4a", tmp_path, False)["src"] == "late.m4a"


def test_channels_that_cancel_each_other_are_not_said_to_be_averaged(
    transcribe_folder, tmp_path, caplog
):
    folder, voice = tmp_path / "talks", speechlike(2.0)
    folder.mkdir()
    half = np.where(np.arange(len(voice)) < 16000, -1, 1) * voice
    for name, other in {"none": voice, "all": -voice, "half": half}.items():
        both = np.stack([0.9 * voice, other], axis=1)
        soundfile.write(folder / f"{name}.wav", both, 16000)
    assert transcribe_folder(folder) == 0
    (whole,) = [line for line in caplog.messages if "all.wav" in line]
    assert whole.endswith("cancel each other in 2.00 of 2.00 s; only channel 2 is read")
    (half,) = [line for line in caplog.messages if "half.wav" in line]
    assert half.endswith("1.00 of 2.00 s; only channel 2 is read there, elsewhere their average")
    (plain,) = [line for line in caplog.messages if "none.wav" in line]
    assert plain.endswith("its 2 channels are averaged")


def statistics(tmp_path: Path) -> dict:
    return read_statistics(tmp_path / "out" / "statistics.json")


def test_options_in_python(whisper, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(whisper.parent / "cache"))
    soundfile.write(tmp_path / "a.wav", np.tile(speechlike(1.0), 2), 16000)
    data = (tmp_path / "a.wav").read_bytes()
    (tmp_path / "a.wav").write_bytes(data[:-8000])
    options = {"language": "en", "temperature_increment_on_fallback": None}
    (one,) = transcribe(tmp_path / "a.wav", str(whisper), **options)
    assert one.error is None
    (one,) = transcribe(tmp_path / "a.wav", str(whisper), on_bad_audio="refuse", **options)
    assert "is truncated" in one.error
    message = "on_bad_audio: 'skip' is not known; allowed: decode, refuse"
    assert_refused(message, transcribe, tmp_path, str(whisper), on_bad_audio="skip")
