"""A cache folder that cannot be written is replaced by a temporary one."""

import os
import stat
import tempfile
from pathlib import Path

import pytest
from refusals import assert_refused

from espnet_medusa.data.files import cache_folder as cache
from espnet_medusa.data.files import hub_cache
from espnet_medusa.data.files.output_folder import cached_output
from espnet_medusa.decoding.runtime.native import build
from espnet_medusa.networks.whisper.pretrained import open_whisper


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder in use if the cache cannot be written."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    for cached in (cache.temporary_cache, cache.warn_unwritable):
        cached.cache_clear()
    yield tmp_path / "tmp" / f"espnet_medusa-{os.geteuid()}"
    for cached in (cache.temporary_cache, cache.warn_unwritable):
        cached.cache_clear()


def write(folder: Path) -> Path:
    with cached_output(folder, "inputs") as staging:
        if staging is not None:
            (staging / "model.pth").write_text("weights")
    return folder


def without_home(monkeypatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)


@pytest.mark.parametrize("home", ["/dev/null", "/proc", "file", "no home"])
def test_an_unwritable_cache_is_replaced(home, temporary, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    if home == "no home":
        without_home(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path / home))
    for _ in range(2):
        assert cache.in_cache("models/tiny", write) == temporary / "models" / "tiny"
    assert (temporary / "models" / "tiny" / "model.pth").read_text() == "weights"
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    (message,) = caplog.messages
    assert "cannot be written (" in message and f"caching in {temporary}; name" in message


def test_a_full_cache_is_replaced_but_other_errors_are_not(temporary, tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "full"))

    def use(folder):
        if "full" in folder.parts:
            raise OSError(28, "No space left on device", str(folder / "model.pth"))
        return folder

    assert cache.in_cache("kernels", use) == temporary / "kernels"
    for error in (PermissionError(13, "denied", "/models/model.bin"), OSError("no network")):

        def fail(folder, error=error):
            raise error

        with pytest.raises(OSError) as caught:
            cache.in_cache("kernels", fail)
        assert caught.value is error


def test_a_finished_output_in_a_read_only_cache_is_used(temporary, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "image"))
    made = cache.in_cache("models/tiny", write)
    monkeypatch.setattr(Path, "mkdir", lambda path, *_, **__: pytest.fail(f"{path}: read-only"))
    assert cache.in_cache("models/tiny", write) == made and not caplog.messages


@pytest.mark.parametrize("found", ["others may write", "link"])
def test_a_temporary_folder_of_another_user_is_not_used(found, temporary, tmp_path, monkeypatch):
    without_home(monkeypatch)
    if found == "link":
        temporary.symlink_to(tmp_path)
    else:
        temporary.mkdir()
        temporary.chmod(0o777)
    folder = cache.temporary_cache()
    assert folder.parent == temporary.parent and folder != temporary
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert cache.in_cache("kernels", write) == folder / "kernels"


def test_without_any_folder_there_is_a_remedy(temporary, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    message = "neither a cache nor a temporary folder can be written.*XDG_CACHE_HOME or TMPDIR"
    assert_refused(message, cache.in_cache, "models/tiny", write)
    with pytest.raises(build.Unavailable, match=f"kernels cannot be cached .{message}"):
        build.open_best([build.AVX2])


def test_kernels_are_compiled_into_the_temporary_folder(temporary, tmp_path, monkeypatch, caplog):
    source = tmp_path / "sources" / "kernels.cpp"
    source.parent.mkdir()
    source.write_text('extern "C" int request_tiles() { return 0; }')
    monkeypatch.setattr(build, "FOLDER", source.parent)
    monkeypatch.setenv(cache.VARIABLE, "/dev/null")
    assert build.open_best([build.AVX2])
    assert [path.suffix for path in (temporary / "kernels").iterdir()] == [".so"]
    assert "cannot be written" in caplog.text


def test_the_hub_downloads_into_the_temporary_folder(temporary, monkeypatch, caplog):
    folders = []

    def download(name, cache_dir=None):
        folders.append(cache_dir)
        if cache_dir is None:
            raise PermissionError(13, "Permission denied", "/.cache")
        return f"{cache_dir}/{name}"

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/.cache/huggingface/hub")
    assert hub_cache.fetch(download, "tiny") == temporary / "hub" / "tiny"
    # Without a home, huggingface_hub would make a folder "~".
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "~/.cache/huggingface/hub")
    assert hub_cache.fetch(download, "tiny") == temporary / "hub" / "tiny"
    assert folders == [None, temporary / "hub", temporary / "hub"]
    assert caplog.text.count("name another folder in HF_HOME") == 2


def test_a_path_in_the_home_of_no_user_is_a_missing_one():
    assert_refused("no such file", open_whisper, "~nobody-has-this-name/tiny.pt")
