"""Files, folders and patterns to recordings, and the names of their results."""

from pathlib import Path

import numpy as np
import pytest
from cases import cases
from refusals import assert_refused, refuses

from espnet_medusa.transcription.recordings import find_recordings

FILES = ("b.wav", "a.FLAC", "notes.txt", "x.m4a", "day 1/c.mp3", ".hid/d.wav", "._b.wav")


@pytest.fixture
def talks(tmp_path, in_folder):
    for name in FILES:
        (tmp_path / "talks" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "talks" / name).touch()
    return tmp_path / "talks"


@cases(
    ("notes.md", ["talks"], ["a", "b", "day 1/c", "x"]),
    ("notes.md", ["talks/notes.txt", "talks/b.wav", "talks"],
     ["notes", "b", "a", "day 1/c", "x"]),
    ("c.mp3", ["talks/*.wav"], ["b"]),
    ("[1].wav", ["talks/[1].wav"], ["[1]"]),
    ("c.mp3", ["nowhere.wav"], ["nowhere"]),
    ("b.mp3", ["talks"], ["a", "b.mp3", "b.wav", "day 1/c", "x"]),
    ("c.mp3", ["talks/b.wav", "talks/day 1/../b.wav"], ["b"]),
    ("c.mp3", [300 * "n"], [300 * "n"]),
    ids=["folder", "any suffix", "pattern", "no pattern", "missing file", "same stem",
         "two spellings", "long name"],
)  # fmt: skip
def test_names(more, given, names, talks):
    (talks / more).touch()
    assert [one.name for one in find_recordings(given)] == names


def test_ids_and_paths(talks):
    recordings = find_recordings([talks])
    assert [one.id for one in recordings] == ["a", "b", "day_1_c", "x"]
    assert recordings == find_recordings([str(talks)]) == find_recordings([talks, talks])
    paths = [one.path for one in find_recordings(["talks/*.wav", "nowhere.wav"])]
    assert paths == [Path("talks/b.wav"), Path("nowhere.wav")]


def test_ids_of_different_names_are_different(in_folder):
    folder = Path("talks")
    folder.mkdir()
    for name in ("a b.wav", "a_b.wav", "a_b.wav_2.wav"):
        (folder / name).touch()
    recordings = find_recordings(["talks"])
    assert [one.name for one in recordings] == ["a b.wav", "a_b.wav", "a_b.wav_2"]
    assert [one.id for one in recordings] == ["a_b.wav", "a_b.wav_2", "a_b.wav_2_2"]


@refuses(
    ([""], "audio: an argument is empty"),
    (np.zeros(3), "audio: float64; allowed: files, .*; for samples: Speech2Text.transcribe"),
    (["statistics.flac"], "statistics.flac: its result would replace statistics.json in"),
    (["talks"], "talks/text/c.mp3: its result would replace text in the output.*; rename it, or"),
)
def test_names_of_the_commands_files_are_refused(given, talks):
    (talks / "day 1").rename(talks / "text")
    assert [one.name for one in find_recordings([talks / "text", "text.wav"])] == ["c", "text"]
    find_recordings(given)


def test_equal_names_and_folders_without_audio_are_refused(talks, tmp_path):
    (tmp_path / "other").mkdir()
    assert_refused(f"{tmp_path}/other: no audio files", find_recordings, [tmp_path / "other"])
    (tmp_path / "other" / "b.wav").touch()
    message = "both results would be called b.wav; rename one"
    assert_refused(message, find_recordings, ["talks/b.wav", "other/b.wav"])
    assert {one.name for one in find_recordings([tmp_path])} >= {"talks/b", "other/b"}
