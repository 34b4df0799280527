"""Untrusted checkpoints: only complete weights are read, others refused in one line."""

import io
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from cases import cases, combinations
from refusals import Calls, assert_refused, refused
from safetensors.torch import save, save_file

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.checkpoint import load_weights
from espnet_medusa.recipes.report.measures import count_parameters

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4).half()}


def refuse(path, message="") -> None:
    with refused(f"{path}: ", message, error=InputError):
        load_weights(path)


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_state_dicts_of_both_formats(tmp_path, options):
    path = tmp_path / "model.pth"
    torch.save(STATE, path, **options)
    torch.testing.assert_close({**load_weights(path)}, STATE, rtol=0, atol=0)
    for name in ("model", "module", "state_dict"):  # ESPnet's, DeepSpeed's, Lightning's
        torch.save({name: STATE, "epoch": 3, "loops": {"step": 1}}, path, **options)
        assert load_weights(path).keys() == STATE.keys()


@cases(
    ({"a": Calls(print, "hello")}, "not a checkpoint with weights only"),
    ({"a": torch.ones(1).expand(10_000, 10_000)}, "400000000 bytes of tensors in"),
    ({"a": torch.empty(10**9, device="meta")}, "it contains torch._utils._rebuild"),
    ({"a": torch.eye(3).to_sparse()}, "it contains torch._utils._rebuild_sparse"),
    ({"a": Calls(bytearray, 10**10)}, "it contains __builtin__.bytearray"),
    ({1: torch.ones(1)}, "contains no state dict"),
    ({"a": 1.0}, "contains no state dict"),
    ([torch.ones(1)], "contains no state dict"),
)
def test_other_contents_are_refused(content, message, tmp_path, capfd):
    torch.save(content, tmp_path / "model.pth")
    refuse(tmp_path / "model.pth", message)
    assert "hello" not in capfd.readouterr().out


def test_files_not_written_by_torch_are_refused(tmp_path):
    path, stream = tmp_path / "model.pth", io.BytesIO()
    torch.save({"a": torch.zeros(1_000_000)}, stream)
    whole = zipfile.ZipFile(stream)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as small:
        for name in whole.namelist():
            small.writestr(name, whole.read(name))
    assert path.stat().st_size < 10_000
    refuse(path, "is compressed")
    for content in (b"", b"PK\x03\x04", b"\x80\x02.", b"\x80\x02}K\x01R.", pickle.dumps(STATE)):
        path.write_bytes(content)
        refuse(path, "not a checkpoint with weights only")


def test_records_that_are_longer_than_the_file(tmp_path):
    path = tmp_path / "model.pth"
    torch.save(STATE, path)
    with zipfile.ZipFile(path) as archive:
        [record] = [each for each in archive.infolist() if "data.pkl" in each.filename]
    whole, sizes = path.read_bytes(), struct.pack("<II", *[record.file_size] * 2)
    place = whole.index(sizes, whole.index(b"PK\x01\x02"))
    path.write_bytes(whole[:place] + struct.pack("<II", 1 << 31, 1 << 31) + whole[place + 8 :])
    refuse(path, "data.pkl is longer than the file")


@cases(
    # The old format has the number of values of the storage, and of the tensor.
    (70_000, False, b"J\x70\x11\1\0", b"J\xff\xff\xff\x7f", 2, "it declares 2147483647 values"),
    (4, True, b"K\4tq", b"K\xfftq", 1, ""),  # at the end of the storage's tuple
)
def test_storages_longer_than_their_records(size, new, count, more, times, message, tmp_path):
    path = tmp_path / "model.pth"
    torch.save({"a": torch.zeros(size)}, path, _use_new_zipfile_serialization=new)
    whole = path.read_bytes()
    assert whole.count(count) == times
    path.write_bytes(whole.replace(count, more))
    refuse(path, message)


@cases(
    (b"",),
    (struct.pack("<Q", 1 << 40) + b"{",),
    (struct.pack("<Q", 4) + b"{{{{",),
    (save(STATE)[:-3],),
    (save({"a": torch.ones(1)}).replace(b'"F32"', b'"F33"'),),
    ids=["nothing", "no header", "no JSON", "cut", "type"],
)
def test_damaged_safetensors(content, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refuse(path, "no safetensors")
    assert_refused("no safetensors", count_parameters, path)


@combinations(name=["model.safetensors", "model.pt"])
def test_files_without_permission_to_read(name, tmp_path, monkeypatch):
    def deny(path, *_args, **_options):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / name).write_bytes(save(STATE))
    monkeypatch.setattr(Path, "open", deny)
    refuse(tmp_path / name, "permission denied; let this user read it")


def test_safetensors(tmp_path):
    save_file(STATE, tmp_path / "model.safetensors")
    weights = load_weights(tmp_path / "model.safetensors")
    assert all(torch.equal(weights[name], STATE[name]) for name in STATE)
    assert count_parameters(tmp_path / "model.safetensors").total == 10
