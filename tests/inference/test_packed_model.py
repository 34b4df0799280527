"""ESPnet's packed models: same texts as their experiments; files elsewhere are refused."""

import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from cases import cases
from espnet2.main_funcs.pack_funcs import pack
from experiment import speeches
from refusals import assert_refused, refused
from stock_experiment import files, nbest, stock_experiment
from tiny_whisper import save_whisper_of_bytes

from espnet_medusa import Speech2Text
from espnet_medusa.bin import convert
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import read_config
from espnet_medusa.inference.convert.read_whisper import read_whisper
from espnet_medusa.inference.packed_model import fetch_packed_model, open_packed_model, pack_model
from espnet_medusa.networks.whisper.text import TextOptions

CONFIG, MODEL = "exp/asr/config.yaml", "exp/asr/model.pth"
META = {"files": {"asr_model_file": MODEL}, "yaml_files": {"asr_train_config": CONFIG}}
FILES = {"asr_train_config": Path(CONFIG), "asr_model_file": Path(MODEL)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def write_model(folder: Path, meta: dict | None = None, **config) -> Path:
    values = {"token_list": ["<blank>", "a", "<sos/eos>"], "bpemodel": "data/bpe.model"} | config
    (folder / "exp/asr").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "data/bpe.model").write_bytes(b"model")
    torch.save({}, folder / MODEL)
    (folder / CONFIG).write_text(yaml.safe_dump(values))
    (folder / "meta.yaml").write_text(yaml.safe_dump(meta or META))
    return folder


def test_texts_are_those_of_the_experiment(tmp_path, in_folder):
    experiment = stock_experiment(Path("exp/asr"))
    given = {name: os.path.relpath(file) for name, file in files(experiment).items()}
    pack({"asr_model_file": given["asr_model_file"]},
         {"asr_train_config": given["asr_train_config"]}, tmp_path / "packed.zip")  # fmt: skip
    (speech,) = speeches(1)
    options = {"beam_size": 2, "maxlenratio": -5}
    expected = nbest(Speech2Text(**given, **options)(speech))
    (tmp_path / "exp").rename(tmp_path / "gone")
    for _ in range(2):  # unpacked, and found unpacked
        found = Speech2Text.from_pretrained(str(tmp_path / "packed.zip"), **options)(speech)
        assert nbest(found)[0] == expected[0]


def test_a_whisper_is_packed_with_its_tokenizer(tmp_path, in_folder):
    convert.main([str(save_whisper_of_bytes(tmp_path / "whisper")), "exp/asr"])
    (tmp_path / "notes.md").write_text("what it is\n")
    pack_model(FILES, [Path("notes.md")], Path("packed.zip"))
    (speech,) = speeches(1)
    options = {"search": "greedy", "maxlenratio": -5}
    expected = Speech2Text(CONFIG, MODEL, **options)(speech)[0][:3]
    (tmp_path / "exp").rename(tmp_path / "gone")
    assert Speech2Text.from_pretrained("packed.zip", **options)(speech)[0][:3] == expected
    with zipfile.ZipFile("packed.zip") as archive:
        assert archive.read("notes.md") == b"what it is\n"


def test_unpackable_files_are_refused(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "model", bpemodel="/etc/hosts", encoder_conf={"kind": "a/b"})
    monkeypatch.chdir(folder)
    packed, message = Path("packed.zip"), "asr_train_config: bpemodel: '/etc/hosts'; only relative"
    assert_refused(message, pack_model, FILES, [], packed)
    assert_refused("gone.md: no such file", pack_model, FILES, [Path("gone.md")], packed)
    assert_refused(r"option: \.; only files below", pack_model, FILES, [Path(".")], packed)
    assert not packed.exists()


def test_links_are_followed_and_download_folders_ignored(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "model", frontend_conf={"download_dir": "./hub"})
    (folder / "exp").rename(tmp_path / "disk")
    (folder / "exp").symlink_to(tmp_path / "disk")
    (folder / "hub").mkdir()
    (folder / "hub" / "gigabytes.pt").write_bytes(b"")
    monkeypatch.chdir(folder)
    model = FILES | {"asr_model_file": folder / MODEL}
    pack_model(model, [Path("data/bpe.model")], Path("packed.zip"))
    with zipfile.ZipFile("packed.zip") as archive:
        assert sorted(archive.namelist()) == ["data/bpe.model", CONFIG, MODEL, "meta.yaml"]
    config = read_config(Path(open_packed_model(Path("packed.zip"))["asr_train_config"]), "")
    assert Path(config["bpemodel"]).read_bytes() == b"model"
    assert config["frontend_conf"] == {"download_dir": "./hub"}


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_the_model_get_absolute_paths(tmp_path, packed):
    folder = write_model(
        tmp_path / "model", normalize_conf={"stats_file": "data/bpe.model"},
        output_dir="/etc", train_shape_file=["/etc/passwd"], encoder_conf={"kind": "a/b", "n": 2},
    )  # fmt: skip
    before = sorted(folder.rglob("*"))
    source = Path(shutil.make_archive(str(folder), "zip", folder)) if packed else folder
    found = open_packed_model(source)
    assert sorted(folder.rglob("*")) == before
    config = read_config(Path(found["asr_train_config"]), "")
    for path in (config["bpemodel"], config["normalize_conf"]["stats_file"]):
        assert Path(path).read_bytes() == b"model" and Path(path).is_absolute()
        assert Path(path).is_relative_to(folder) != packed
    assert config["encoder_conf"] == {"kind": "a/b", "n": 2} and config["output_dir"] == "/etc"
    assert torch.load(found["asr_model_file"]) == {}


def test_a_changed_model_is_read_again(tmp_path):
    folder = write_model(tmp_path / "model", first=1)
    assert "first" in read_config(Path(open_packed_model(folder)["asr_train_config"]), "")
    (folder / CONFIG).write_text("second_of_them: 2\n")
    assert "second_of_them" in read_config(Path(open_packed_model(folder)["asr_train_config"]), "")


@cases(
    ({"token_list": "/etc/passwd"}, "token_list: '/etc/passwd'"),
    ({"bpemodel": "../../../../../../../etc/passwd"}, "bpemodel: '../../"),
    ({"bpemodel": "~"}, "bpemodel: '~'"),
    ({"bpemodel": "here.model"}, "bpemodel: 'here.model'"),
    ({"encoder_conf": {"whisper_model": "own/whisper"}}, "encoder_conf.whisper_m"),
    ({"normalize_conf": {"stats_file": "/etc/hosts"}}, "normalize_conf.stats_file"),
    ({"x_conf": {"files": ["a/b", "/etc/hosts"]}}, "x_conf.files[1]: '/etc/hosts'"),
    ({"encoder_conf": {"w2v_url": "https://x.y/a.pt"}}, "encoder_conf.w2v_url: 'https:"),
    ({"bpemodel": "data/link"}, "bpemodel: 'data/link'"),
    ({"files": {"asr_model_file": "../x.pth"}}, "files.asr_model_file: '../x"),
    ({"files": {"asr_model_file": "/etc/passwd"}}, "'/etc/passwd'; allowed: fil"),
    ({"files": {"asr_model_file": "gone.pth"}}, "'gone.pth' is not there"),
    ({"files": {"device": MODEL}}, "files.device: allowed: asr_model_file"),
    ({"files": [MODEL]}, "files: is not a mapping"),
    ({"files": {"asr_model_file": 5}}, "files.asr_model_file: 5"),
)
def test_files_outside_of_the_model_are_refused(values, message, tmp_path):
    """In its config, and with ``files`` in its meta.yaml."""
    Path("here.model").write_bytes(b"mine")
    Path("own/whisper").mkdir(parents=True)
    config, meta = ({}, META | values) if "files" in values else (values, None)
    folder = write_model(tmp_path / "model", meta, **config)
    (folder / "data/link").symlink_to("/etc/passwd")
    parts = [f"{folder}: asr_train_config: ", "allowed: files of the model"] if config else []
    with refused(message, *parts, error=InputError):
        open_packed_model(folder)


def test_bad_and_unsafe_archives_are_refused(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK")
    assert_refused("a.zip: is no whole zip archive", open_packed_model, tmp_path / "a.zip")
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../meta.yaml"))
    assert_refused("b.tar: is not safe to unpack", open_packed_model, tmp_path / "b.tar")
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("a", "b")
    assert_refused("c.zip: no meta.yaml; give a model", open_packed_model, tmp_path / "c.zip")
    assert not (tmp_path / "meta.yaml").exists()


def test_links_of_a_hub_snapshot_are_allowed(tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1234"
    write_model(snapshot)
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for number, file in enumerate([path for path in snapshot.rglob("*") if path.is_file()]):
        file.rename(blobs / str(number))
        file.symlink_to(os.path.relpath(blobs / str(number), file.parent))
    found = open_packed_model(snapshot)
    assert read_config(Path(found["asr_train_config"]), "")["bpemodel"].startswith(str(snapshot))


def test_tags_are_fetched_but_not_unpacked_by_the_zoo(monkeypatch):
    asked = []

    class ModelDownloader:
        def get_url(self, name):
            return "huggingface.co" if name.startswith("hub/") else f"https://zenodo.org/{name}"

        def huggingface_download(self, name):
            asked.append(("hub", name))
            return f"/cache/{name}"

        def download(self, name):
            if name == "gone":
                raise RuntimeError("no such model\nat all")
            asked.append(("archive", name))
            return f"/cache/{name}.zip"

    module = ModuleType("espnet_model_zoo.downloader")
    module.ModelDownloader = ModelDownloader
    monkeypatch.setitem(sys.modules, "espnet_model_zoo", ModuleType("espnet_model_zoo"))
    monkeypatch.setitem(sys.modules, "espnet_model_zoo.downloader", module)
    for tag in ("hub/a", "https://huggingface.co/hub/a"):
        assert fetch_packed_model(tag) == Path("/cache/hub/a")
    assert fetch_packed_model("someone/asr") == Path("/cache/someone/asr.zip")
    assert asked == [("hub", "hub/a"), ("hub", "hub/a"), ("archive", "someone/asr")]
    message = "model_tag: 'gone' was not fetched: no such model; check"
    assert_refused(message, fetch_packed_model, "gone")


def test_missing_statistics_are_named_when_packing_and_opening(tmp_path, monkeypatch):
    model = write_model(tmp_path / "model", normalize_conf={"stats_file": "exp/stats/feats.npz"})
    line = "asr_train_config: normalize_conf.stats_file: 'exp/stats/feats.npz'"
    assert_refused(f"{line} is not in it", open_packed_model, model)
    monkeypatch.chdir(model)
    assert_refused(f"{line}: no such file", pack_model, FILES, [], Path("packed.zip"))
    assert not Path("packed.zip").exists()


@pytest.mark.parametrize("name", ["stock.zip", "exp/stock.tar.gz"])
def test_a_mistyped_archive_is_not_looked_up_on_the_hub(name, monkeypatch):
    def look_up(*given, **options):
        raise AssertionError("the hub")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", look_up)
    monkeypatch.setattr("huggingface_hub.snapshot_download", look_up)
    assert_refused(f"{name}.*correct the path", Speech2Text.from_pretrained, name)
    assert_refused(f"{name}.*correct the path", read_whisper, name, TextOptions())
