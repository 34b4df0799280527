"""Downloads from a local server with broken connections, damaged and changed files."""

import hashlib
import random
from pathlib import Path

import pytest
from cases import cases
from downloads import make_tar, serve, tree
from refusals import command_refused, refused

from espnet_medusa.bin import stage
from espnet_medusa.data.errors import InputError
from espnet_medusa.recipes import download as module
from espnet_medusa.recipes.download import download

CONTENT = random.Random(0).randbytes(700_000)
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)
    with serve() as state:
        state.files["/corpus.tar.gz"] = CONTENT
        state.versions["/corpus.tar.gz"] = '"first"'
        yield state


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "corpus.tar.gz"


def fetch(server, path: Path, checksum: str | None = MD5) -> bytes:
    assert download(f"{server.url}/corpus.tar.gz", path, checksum) == path
    return path.read_bytes()


def write_partial(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    Path(f"{path}.partial").write_bytes(content)


def ranges(server) -> list[str | None]:
    return [part for _, part in server.requests]


def only_file(path: Path) -> bool:
    return [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("checksum", [None, MD5, "sha256:" + hashlib.sha256(CONTENT).hexdigest()])
def test_file_is_fetched_once(server, path, checksum):
    for _ in range(2):
        assert fetch(server, path, checksum) == CONTENT and only_file(path)
    assert ranges(server) == [None]


def test_broken_connections_are_resumed(server, path):
    server.cut_after = 150_000
    assert fetch(server, path) == CONTENT and only_file(path)
    assert ranges(server) == [None] + [f"bytes={n}-" for n in range(150_000, 700_000, 150_000)]


def test_a_dead_connection_is_an_error_and_the_next_call_resumes(server, path):
    download_partly(server, path)
    assert not path.exists() and Path(f"{path}.partial").read_bytes() == CONTENT[:300_000]
    server.requests.clear()
    assert fetch(server, path) == CONTENT
    assert ranges(server) == ["bytes=300000-"] and only_file(path)


def download_partly(server, path) -> None:
    """Download 300,000 bytes from a server that then breaks down, and repair the server."""
    server.cut_after = 300_000

    def break_down(*_):
        server.statuses = [503] * 100

    complete = f"{server.cut_after} bytes are complete: run the command again"
    with pytest.MonkeyPatch.context() as patch, refused(path, "503", complete, error=InputError):
        patch.setattr(module.time, "sleep", break_down)
        fetch(server, path)
    server.cut_after, server.statuses = None, []


def test_two_versions_of_a_file_are_never_joined(server, path):
    download_partly(server, path)
    changed = CONTENT[::-1]
    server.files["/corpus.tar.gz"], server.versions["/corpus.tar.gz"] = changed, '"second"'
    assert fetch(server, path, checksum=None) == changed


@pytest.mark.parametrize("too_much", [0, 5])
def test_partial_file_with_nothing_left_to_fetch(server, path, too_much):
    write_partial(path, CONTENT + bytes(too_much))
    assert fetch(server, path) == CONTENT
    assert len(server.requests) == (2 if too_much else 1)


def test_busy_server_without_ranges_starts_anew(server, path):
    server.supports_range = False
    server.statuses = [503, 429]
    write_partial(path, CONTENT[:1000])
    assert fetch(server, path) == CONTENT


def test_wrong_checksum_is_one_line_and_the_next_call_fetches_anew(server, path):
    server.files["/corpus.tar.gz"] = CONTENT[:-1] + b"?"
    result = hashlib.md5(server.files["/corpus.tar.gz"]).hexdigest()
    md5 = f"md5 is {result}, expected {MD5.removeprefix('md5:')}"
    with refused(path, "run the command again", md5, error=InputError):
        fetch(server, path)
    assert not list(path.parent.iterdir()), "nothing under the final name, nothing to go on from"
    server.files["/corpus.tar.gz"] = CONTENT
    assert fetch(server, path) == CONTENT


def test_an_existing_damaged_file_is_named_and_downloaded_again(server, path, capsys):
    path.parent.mkdir()
    path.write_bytes(CONTENT[:1000])
    assert fetch(server, path) == CONTENT
    lines = [line for line in capsys.readouterr().err.splitlines() if "damaged" in line]
    assert len(lines) == 1 and str(path) in lines[0] and "1000 bytes" in lines[0]
    assert hashlib.md5(CONTENT[:1000]).hexdigest() in lines[0] and MD5[4:] in lines[0]


REFUSED = "http://127.0.0.1:9/corpus.tar.gz"


@cases(
    ("{}/nowhere.tar.gz", None, ["/nowhere.tar.gz", "404 Not Found"]),
    (REFUSED, None, ["Connection refused", "run the command again"]),
    *(
        (REFUSED, checksum, [f"checksum {checksum!r}: allowed: md5:<32 digits>"])
        for checksum in ("md5:12", "crc:" + "0" * 8, "0" * 32, "md5:" + "x" * 32)
    ),
    ("ftp://corpus.tar.gz", None, ["ftp://corpus.tar.gz: allowed: ", "http://"]),
)
def test_unusable_addresses_and_checksums_are_one_line(url, checksum, parts, server, path):
    with refused(*parts, error=InputError):
        download(url.format(server.url), path, checksum)
    assert len(server.requests) == url.startswith("{}") and not path.exists()


def test_command_fetches_and_unpacks(server, tmp_path, capsys):
    packed = make_tar(tmp_path / "made.tar.gz", {"Corpus/a.txt": b"a"}).read_bytes()
    server.files["/a.tar.gz"] = packed
    options = ["--url", f"{server.url}/a.tar.gz", "--path", str(tmp_path / "got.tar.gz")]
    checksum = f"md5:{hashlib.md5(packed).hexdigest()}"
    unpack = ["--checksum", checksum, "--unpack_to", str(tmp_path / "out")]
    stage.main(["download", *options, *unpack])
    assert tree(tmp_path / "out") == {"Corpus/a.txt": b"a"}
    (tmp_path / "got.tar.gz").unlink()
    with command_refused(capsys, "got.tar.gz: is damaged"):
        stage.main(["download", *options, "--checksum", MD5])
