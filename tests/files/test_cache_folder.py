"""Only the user can write to the cache folder."""

import os
from pathlib import Path

import pytest

from espnet_medusa.files import cache_folder
from espnet_medusa.files.cache_folder import check_private, make_private


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


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o500])
def test_others_may_read(tmp_path, mode):
    tmp_path.chmod(mode)
    check_private(tmp_path)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_folders_that_others_may_write_to_are_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match="others may write to it; run `chmod go-w"):
        make_private(tmp_path)


def test_folders_of_another_user_are_refused(monkeypatch, tmp_path):
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(PermissionError, match=f"belongs to user {user - 1}, not {user}, or name"):
        check_private(tmp_path)


def test_links_are_resolved(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(PermissionError, match="link: others may write"):
        make_private(tmp_path / "link")
