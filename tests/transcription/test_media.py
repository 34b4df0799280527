"""Folders of media files: which are transcribed, with which times, and damaged ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from experiment import read_lines
from media_files import speechlike
from refusals import assert_refused
from timed_media import write_timed

from espnet_medusa.decoding.search.statistics import read_statistics
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
