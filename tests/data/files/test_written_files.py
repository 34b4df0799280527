"""Atomic writes, errors that name the file, and a cache folder that only its user can change."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from refusals import assert_refused

from espnet_medusa.data.files import atomic, cache_folder
from espnet_medusa.data.files.atomic import is_full, naming, write_atomically
from espnet_medusa.data.files.cache_folder import check_private, make_private


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "folder" / ("text" + 251 * "t")  # the longest name
    write_atomically(path, "a one\n")
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(atomic.os, "replace", Mock(side_effect=error))
    with pytest.raises(OSError, match="No space left on device: '.*folder/textt*'"):
        write_atomically(path, "b two\n")
    assert path.read_text() == "a one\n"
    assert [*path.parent.iterdir()] == [path], "nothing half-written stays"


def test_pipes_and_streams_are_not_replaced(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, "a one\n")
    assert os.read(reader, 100) == b"a one\n" and pipe.is_fifo()
    os.close(reader)
    text = tmp_path / "text"
    with text.open("w") as stream:  # as stdout is, redirected
        write_atomically(f"/dev/fd/{stream.fileno()}", "b two\n")
    assert text.read_text() == "b two\n"
    link.symlink_to(text)
    write_atomically(link, "c three\n")
    assert (text.read_text(), link.read_text()) == ("b two\n", "c three\n")
    assert not link.is_symlink(), "its target may belong to another user"


def test_an_error_of_a_full_device_names_the_file_and_one_with_a_name_is_unchanged():
    with (
        pytest.raises(OSError, match="No space left on device: 'out/speech.flac'") as caught,
        naming("out/speech.flac"),
        open("/dev/full", "w") as stream,
    ):
        stream.write("x")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(FileNotFoundError, match="/nowhere/at/all"), naming("other"):
        os.stat("/nowhere/at/all")


def test_other_errors_on_a_full_disk_name_the_file(tmp_path, monkeypatch):
    def write():
        with naming(tmp_path / "missing" / "model.pth"):
            raise RuntimeError("basic_ios::clear: iostream error")

    assert not is_full(tmp_path / "missing" / "model.pth")
    assert_refused("iostream", write, error=RuntimeError)
    monkeypatch.setattr(atomic, "FULL_BYTES", 1 << 60)
    assert_refused("No space left on device: '.*model.pth'", write, error=OSError)


def test_the_folder_belongs_to_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder.cache_folder() == tmp_path / "espnet_medusa"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder.cache_folder() == Path.home() / ".cache" / "espnet_medusa"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_new_folders_are_private_for_any_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        for _ in range(2):
            make_private(tmp_path / "one" / "other")
    finally:
        os.umask(before)
    assert (tmp_path / "one" / "other").stat().st_mode & 0o777 == 0o700


def test_others_may_read_but_not_write(tmp_path):
    for mode in (0o700, 0o755, 0o500):
        tmp_path.chmod(mode)
        check_private(tmp_path)
    for mode in (0o770, 0o702, 0o1777):
        tmp_path.chmod(mode)
        with pytest.raises(PermissionError, match="others may write to it; run `chmod go-w"):
            make_private(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    assert_refused("link: others may write", make_private, tmp_path / "link", error=PermissionError)


def test_folders_of_another_user_are_refused(monkeypatch, tmp_path):
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(PermissionError, match=f"belongs to user {user - 1}, not {user}; change"):
        check_private(tmp_path)
