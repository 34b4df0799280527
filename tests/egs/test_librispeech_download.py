"""LibriSpeech downloaded from a local server, with damaged archives."""

import hashlib

import librispeech_files
import prepare_librispeech
from downloads import serve
from librispeech_miniature import archive, make_librispeech, make_librispeech_pc
from librispeech_preparation import errors, publish, run

from espnet_medusa.kaldi.data_dir import validate_data_dir
from espnet_medusa.kaldi.table import read_table
from espnet_medusa.recipe import download


def test_missing_corpus_is_downloaded_checked_and_unpacked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(download, "RETRY_PAUSE_S", 0.0)
    source = tmp_path / "source"
    subsets = ("dev-clean", "dev-other")
    corpus = make_librispeech(source, subsets, 1, 2, (0.2, 0.3))
    pc = make_librispeech_pc(source / "pc", corpus)
    packed = publish(corpus, monkeypatch, *subsets)
    manifests = archive(source / "m.tar.gz", pc, *(f"{name}.json" for name in subsets))
    checksum = f"sha256:{hashlib.sha256(manifests.read_bytes()).hexdigest()}"
    monkeypatch.setattr(
        prepare_librispeech,
        "fetch_manifest",
        lambda *args: librispeech_files.fetch_manifest(*args, checksum=checksum),
    )
    downloads = tmp_path / "downloads"
    with serve() as server:
        server.files = packed | {"/145/manifests.tar.gz": manifests.read_bytes()}
        options = ["--download_dir", downloads, "--openslr", server.url, "--subsets", *subsets]
        server.files["/12/dev-other.tar.gz"] = b"?" + packed["/12/dev-other.tar.gz"]
        assert run(tmp_path, *options) == 1
        (line,) = errors(capsys)
        assert "dev-other.tar.gz: is damaged" in line and "expected" in line
        assert (downloads / "LibriSpeech" / "dev-clean").is_dir()
        server.files["/12/dev-other.tar.gz"] = packed["/12/dev-other.tar.gz"]
        server.requests.clear()
        assert run(tmp_path, *options) == 0
        wanted = ["/12/dev-other.tar.gz", "/145/manifests.tar.gz"]
        assert [path for path, _ in server.requests] == wanted, "dev-clean exists"
        for path in downloads.glob("*.tar.gz"):
            path.unlink()
        server.requests.clear()
        assert run(tmp_path, *options) == 0
        assert server.requests == [], "archives are not needed once they are unpacked"
    assert validate_data_dir(tmp_path / "data" / "dev") == []
    assert len(read_table(tmp_path / "data" / "dev" / "text")) == 4


def test_damaged_test_set_is_one_line_and_the_rest_is_prepared(tmp_path, capsys):
    corpus = make_librispeech(tmp_path / "downloads", ("dev-clean", "test-clean"), 1, 2, (0.2, 0.3))
    with serve() as server:
        server.files["/12/test-other.tar.gz"] = b"something else"
        options = ["--download_dir", corpus.parent, "--openslr", server.url]
        options += ["--librispeech_pc", "false", "--subsets"]
        assert run(tmp_path, *options, "test-other", "dev-clean", "test-clean") == 3
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("test-other: ") and "test-other.tar.gz: is damaged" in line
        made = {path.name for path in (tmp_path / "data").iterdir()}
        assert made == {"dev_clean", "test_clean"}
        # Without a training set it ends, after the others were fetched.
        server.files["/12/train-clean-100.tar.gz"] = b"something else"
        server.requests.clear()
        assert run(tmp_path, *options, "train-clean-100", "test-other") == 1
        wanted = ["/12/train-clean-100.tar.gz", "/12/test-other.tar.gz"]
        assert [path for path, _ in server.requests] == wanted
        (line,) = errors(capsys)
        assert "train-clean-100.tar.gz: is damaged" in line and "test-other.tar.gz: is" in line
