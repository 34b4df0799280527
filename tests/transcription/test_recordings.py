"""Files, folders and patterns to recordings, and the names of their results."""

import pytest

from espnet_medusa.errors import InputError
from espnet_medusa.transcription.recordings import Recording, find_recordings


@pytest.fixture
def talks(tmp_path, monkeypatch):
    """A folder with audio, other and hidden files."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.wav", "a.FLAC", "notes.txt", "x.m4a", "day 1/c.mp3", ".hid/d.wav", "._b.wav"):
        (tmp_path / "talks" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "talks" / name).touch()
    return tmp_path / "talks"


def named(recordings: list[Recording]) -> dict[str, str]:
    return {one.name: str(one.path) for one in recordings}


def test_folders_have_files_with_audio_suffixes_without_hidden_ones(talks):
    recordings = find_recordings([talks])
    assert [one.name for one in recordings] == ["a", "b", "day 1/c", "x"]
    assert [one.id for one in recordings] == ["a", "b", "day_1_c", "x"]
    assert recordings == find_recordings([str(talks)]) == find_recordings(["talks/", talks][1:])


def test_files_may_have_any_suffix_and_are_listed_once(talks):
    recordings = find_recordings(["talks/notes.txt", "talks/b.wav", "talks"])
    assert [one.name for one in recordings] == ["notes", "b", "a", "day 1/c", "x"]


def test_patterns(talks):
    assert named(find_recordings(["talks/*.wav"])) == {"b": "talks/b.wav"}
    # A file name that looks like a pattern.
    (talks / "[1].wav").touch()
    assert named(find_recordings(["talks/[1].wav"])) == {"[1]": "talks/[1].wav"}


def test_missing_files_are_listed(talks):
    assert named(find_recordings(["nowhere.wav"])) == {"nowhere": "nowhere.wav"}


def test_names_have_suffixes_if_files_differ_only_in_them(talks):
    (talks / "b.mp3").touch()
    assert {one.name for one in find_recordings([talks])} == {
        "a", "b.mp3", "b.wav", "day 1/c", "x",
    }  # fmt: skip


def test_equal_names_are_refused(talks, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.wav").touch()
    with pytest.raises(InputError, match="both results would be called b.wav; rename one"):
        find_recordings(["talks/b.wav", "other/b.wav"])
    assert {one.name for one in find_recordings([tmp_path])} >= {"talks/b", "other/b"}


def test_no_audio_at_all_is_refused(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}: no audio files"):
        find_recordings([tmp_path])
