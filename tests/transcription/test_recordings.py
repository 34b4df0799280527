"""Files, folders and patterns to recordings, and what their results are called."""

import pytest

from espnet_medusa.errors import InputError
from espnet_medusa.transcription.recordings import Recording, find_recordings


@pytest.fixture
def talks(tmp_path, monkeypatch):
    """A folder as users have them."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.wav", "a.FLAC", "notes.txt", "x.m4a", "day 1/c.mp3", ".hid/d.wav", "._b.wav"):
        (tmp_path / "talks" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "talks" / name).touch()
    return tmp_path / "talks"


def named(recordings: list[Recording]) -> dict[str, str]:
    return {one.name: str(one.path) for one in recordings}


def test_a_folder_holds_what_its_suffixes_say_hidden_files_aside(talks):
    found = find_recordings([talks])
    assert [one.name for one in found] == ["a", "b", "day 1/c", "x"]
    assert [one.id for one in found] == ["a", "b", "day_1_c", "x"]
    assert found == find_recordings([str(talks)]) == find_recordings(["talks/", talks][1:])


def test_files_are_taken_whatever_their_suffix_and_once_each(talks):
    found = find_recordings(["talks/notes.txt", "talks/b.wav", "talks"])
    assert [one.name for one in found] == ["notes", "b", "a", "day 1/c", "x"]


def test_patterns_are_for_users_whose_shell_has_none(talks):
    assert named(find_recordings(["talks/*.wav"])) == {"b": "talks/b.wav"}
    # A file whose name looks like a pattern is a file.
    (talks / "[1].wav").touch()
    assert named(find_recordings(["talks/[1].wav"])) == {"[1]": "talks/[1].wav"}


def test_what_is_not_there_is_kept_for_its_failure(talks):
    assert named(find_recordings(["nowhere.wav"])) == {"nowhere": "nowhere.wav"}


def test_files_that_differ_in_suffix_alone_keep_it(talks):
    (talks / "b.mp3").touch()
    assert {one.name for one in find_recordings([talks])} == {
        "a", "b.mp3", "b.wav", "day 1/c", "x",
    }  # fmt: skip


def test_results_of_one_name_are_refused(talks, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.wav").touch()
    with pytest.raises(InputError, match="both results would be called b.wav; rename one"):
        find_recordings(["talks/b.wav", "other/b.wav"])
    assert {one.name for one in find_recordings([tmp_path])} >= {"talks/b", "other/b"}


def test_no_audio_at_all_is_one_line(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}: no audio files"):
        find_recordings([tmp_path])
