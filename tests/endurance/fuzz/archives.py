"""Tar and zip archives."""

import os
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from downloads import link, make_tar

from espnet_medusa.data.files.archive import ANY_SIZE_BYTES, unpack
from fuzz.reader import MEGABYTE, fuzzed, scratch_folder, write_scratch, zipped

FILES = {"exp/model.pth": b"weights", "meta.yaml": b"files: {}\n", "exp/a/b.txt": b""}
KEPT = "kept.txt"


def tar(mode: str) -> bytes:
    members = FILES | {"link": link("link", "exp/model.pth")}
    return make_tar(scratch_folder() / "made.tar", members, mode).read_bytes()


@fuzzed(
    seeds=lambda: [
        *map(tar, ("w", "w:gz", "w:bz2", "w:xz")),
        *(zipped(FILES, method) for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)),
    ],
    words=(b"../", b"/etc/", b"ustar\x0000", b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"),
    max_bytes=12288,
    room_bytes=512 * MEGABYTE,
)
def archive_members(data: bytes) -> None:
    """Check that nothing is written, and no link leads, outside the folder."""
    with TemporaryDirectory(dir=scratch_folder()) as name:
        around = Path(name)
        folder = around / "in" / "out"
        folder.mkdir(parents=True)
        (around / KEPT).write_bytes(b"")
        try:
            unpack(write_scratch("model.archive", data), folder)
            for path in folder.rglob("*"):
                assert Path(os.path.realpath(path)).is_relative_to(folder.resolve())
                assert path.is_symlink() or path.is_file() or path.is_dir()
                assert path.is_dir() or path.lstat().st_size <= ANY_SIZE_BYTES
            assert not [*folder.glob("*.unpacking")]
        finally:
            assert sorted(path.name for path in around.iterdir()) == ["in", KEPT]
            assert [path.name for path in (around / "in").iterdir()] == ["out"]
