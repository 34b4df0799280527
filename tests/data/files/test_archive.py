"""Unsafe and damaged archives are refused and leave no files."""

import bz2
import os
import random
import stat
import struct
import tarfile
import zipfile
from unittest.mock import Mock

import pytest
from cases import cases
from downloads import link, make_tar, tree
from refusals import allocates_less_than, refused

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files import archive as module
from espnet_medusa.data.files.archive import unpack

DEVICE, LINK = tarfile.TarInfo("device"), zipfile.ZipInfo("link")
DEVICE.type, LINK.external_attr = tarfile.CHRTYPE, (stat.S_IFLNK | 0o777) << 16


def make_zip(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return path


def assert_left_packed(archive, folder, *message):
    """Expect an error of one line from ``unpack``, which leaves no files."""
    with refused(*message, error=InputError):
        unpack(archive, folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_archives_of_one_corpus_are_merged(tmp_path, mode):
    first = {"Corpus/a/1.txt": b"one", "Corpus/README": b"old"}
    second = {"Corpus/b/2.txt": b"two", "Corpus/README": b"new"}
    for members in (first, second):
        unpack(make_tar(tmp_path / "archive", members, mode), tmp_path / "out")
    assert tree(tmp_path / "out") == first | second
    outside = tmp_path / "outside.txt"  # an absolute name stays inside
    unpack(make_tar(tmp_path / "archive", {str(outside): b"x"}, mode), tmp_path / "other")
    assert not outside.exists() and list(tree(tmp_path / "other").values()) == [b"x"]


def test_links_that_tarfile_cannot_resolve_are_refused(tmp_path):
    """CVE-2025-4517: by short links, a path can be longer than the longest that is resolved."""
    members, path, long, names = {}, "", "d" * 247, "abcdefghijklmnop"
    for name in names:
        members[path + long] = link(path + long, "")
        members[path + long].type = tarfile.DIRTYPE
        members[path + name] = link(path + name, long)
        path += f"{long}/"
    far = f"{'/'.join(names)}/{'l' * 254}"
    members[far] = link(far, "../" * len(names))
    members["escape"] = link("escape", f"{far}/../../outside")
    members["escape/file"] = b"x"
    (tmp_path / "outside").mkdir()
    make_tar(tmp_path / "archive", members)
    assert_left_packed(tmp_path / "archive", tmp_path / "out", "is below a link")
    assert not list((tmp_path / "outside").iterdir())


@cases(
    ({"a/1.txt": b"new", "b": b"x"}, "b: is a folder, but a file in the archive"),
    ({"a/1.txt/2": b"x", "a/0": b"new"}, "1.txt: is a file, but a folder in the archive"),
)
def test_file_and_folder_of_the_same_name_are_refused_first(members, message, tmp_path):
    folder = unpack(
        make_tar(tmp_path / "old", {"a/1.txt": b"old", "b/c": b"old"}), tmp_path / "out"
    )
    before = tree(folder)
    with refused(message, "nothing was unpacked", error=InputError):
        unpack(make_tar(tmp_path / "new", members), folder)
    assert tree(folder) == before


@cases(
    (make_tar, "../outside.txt", b"x", ""),
    (make_tar, "a/../../outside.txt", b"x", ""),
    (make_tar, "a/link", link("a/link", "../../outside.txt"), ""),
    (make_tar, "device", DEVICE, ""),
    *(
        (make_zip, name, b"/etc/passwd", "is outside")
        for name in ("../outside.txt", "/outside.txt", "a/../../b", "a\\..\\b")
    ),
    (make_zip, LINK, b"/etc/passwd", "'link' is a link or a device"),
)
def test_an_archive_that_would_escape_is_refused(make, name, member, message, tmp_path):
    archive = make(tmp_path / "bad.archive", {"good.txt": b"x", name: member})
    assert_left_packed(archive, tmp_path / "out", "bad.archive: is not safe to unpack", message)
    assert sorted(tmp_path.rglob("*")) == [archive, tmp_path / "out"]


@cases((make_zip, zipfile.ZIP_DEFLATED), (make_tar, "w:gz"))
def test_archive_that_grows_too_much_is_refused(make, compression, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ANY_SIZE_BYTES", 10_000)
    members = {f"{n}.bin": bytes(100_000) for n in range(9)}
    path, message = tmp_path / "bomb", "bomb: is not safe to unpack (it contains more than"
    assert make(path, members, compression).stat().st_size < 9000
    assert_left_packed(path, tmp_path / "out", message)


def test_zip_archive_is_checked_and_unpacked(tmp_path):
    members = {"exp/a.bin": random.Random(0).randbytes(50_000), "meta.yaml": b"files: {}"}
    archive = make_zip(tmp_path / "a.zip", members)
    unpack(archive, tmp_path / "out")
    assert tree(tmp_path / "out") == members
    whole = archive.read_bytes()
    for damaged in (whole[:-3], whole[:30_000], whole[:200] + b"?" + whole[201:]):
        archive.write_bytes(damaged)
        assert_left_packed(archive, tmp_path / "new", "a.zip: is no whole zip archive")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_truncated_archive_is_one_line_and_unpacks_nothing(tmp_path, mode):
    members = {f"Corpus/{n}.bin": random.Random(n).randbytes(1000) for n in range(4)}
    whole = make_tar(tmp_path / "whole", members, mode).read_bytes()
    cut = tmp_path / "cut.tar"
    # Every kind of place: in a header, in a member, between members, in the gzip trailer.
    ends = [1, 100, 512, 600, 1536, 2048, 3100, 3584, len(whole) // 2]
    ends += [len(whole) - 3] if mode != "w" else []
    for end in ends:
        cut.write_bytes(whole[:end])
        message = "cut.tar: is no whole tar archive", "fetch it anew"
        assert_left_packed(cut, tmp_path / "out", *message)


def test_interrupted_unpacking_leaves_no_partial_output(tmp_path, monkeypatch):
    archive = make_tar(tmp_path / "a.tar.gz", {"Corpus/a.txt": b"a", "Corpus/b.txt": b"b"})
    move = Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.os, "replace", move)
        unpack(archive, tmp_path / "out")
    [call] = move.call_args_list
    assert os.path.basename(call.args[0]) == "Corpus", "the folder is moved as a whole"
    assert not list((tmp_path / "out").iterdir())
    unpack(archive, tmp_path / "out")
    assert tree(tmp_path / "out") == {"Corpus/a.txt": b"a", "Corpus/b.txt": b"b"}


def test_unusual_damage_is_refused_in_one_line(tmp_path):
    """Errors of zipfile, gzip, bz2 and the file system."""
    path = make_zip(tmp_path / "name.zip", {"abc": "x"})
    path.write_bytes(path.read_bytes().replace(b"abc", b"\0bc"))
    make_tar(tmp_path / "both.tar", {"a": b"x", "a/b": b"y"}, "w")
    make_tar(tmp_path / "long.tar", {"n" * 300: b"x"}, "w")
    for kind in ("gz", "bz2"):
        members = {"a": random.Random(0).randbytes(50_000)}
        path = make_tar(tmp_path / f"a.tar.{kind}", members, f"w:{kind}")
        whole = path.read_bytes()
        path.write_bytes(whole[:200] + bytes(60) + whole[260:])
    for path in sorted(tmp_path.iterdir()):
        kind = "zip" if path.suffix == ".zip" else "tar"
        assert_left_packed(path, tmp_path / "out", f"{path.name}: is no whole {kind} archive")


def test_headers_and_what_follows_the_end_count(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ANY_SIZE_BYTES", 1 << 20)
    headers, rest = tmp_path / "headers.tar.bz2", tmp_path / "rest.tar.bz2"
    with tarfile.open(headers, "w:bz2", format=tarfile.PAX_FORMAT) as tar:
        for number in range(40):
            member = tarfile.TarInfo(f"empty{number}")
            member.pax_headers = {"comment": "a" * 100_000}
            tar.addfile(member)
    with bz2.open(rest, "wb") as stream:
        stream.write(bytes(4 << 20))
    (tmp_path / "out").mkdir()
    for path in (headers, rest):
        assert_left_packed(path, tmp_path / "out", "contains more than")


def test_too_long_names_allocate_no_memory(tmp_path):
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    archive = tmp_path / "a.tar"
    archive.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    with allocates_less_than(1_000_000):
        assert_left_packed(archive, tmp_path / "out", "a.tar: is no whole tar archive")


def test_xz_that_needs_too_much_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "XZ_MEMORY_BYTES", 1 << 20)
    archive = make_tar(tmp_path / "a.tar.xz", {"a": b"x"}, "w:xz")
    message = "a.tar.xz: is not safe to unpack (xz needs more than"
    assert_left_packed(archive, tmp_path / "out", message)
    header = b"\x5d" + struct.pack("<I", 1 << 31) + b"\xff" * 8  # of the format before xz
    archive = archive.with_suffix(".lzma")
    archive.write_bytes(header + bytes(40))
    assert_left_packed(archive, tmp_path / "out", "a.tar.lzma: is ")
