"""Unpack untrusted archives: completely or not at all, into one folder, in limited size."""

import errno
import gzip
import lzma
import os
import shutil
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeVar

from tqdm import tqdm

from espnet_medusa.data.errors import InputError

CHUNK_BYTES = 1 << 18
TAR_BLOCK_BYTES = 512
# Limit of the unpacked size: a multiple of the archive's size, or these bytes if they are more.
MAX_GROWTH, ANY_SIZE_BYTES = 100, 1 << 30
XZ_MEMORY_BYTES = 1 << 28
ZIP = b"PK"
MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\0": "xz"}
MAX_NAME_BYTES = 1 << 20
NAME_TYPES = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
DAMAGE = (  # second line: errors for wrong passwords, dates and names
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError,
    RuntimeError, ValueError, OverflowError, LookupError, MemoryError,
    NotADirectoryError, IsADirectoryError, FileExistsError, FileNotFoundError,
)  # fmt: skip
DAMAGE_ERRNOS = (None, errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP)  # None: from bz2
SUFFIXES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz")
Member = TypeVar("Member", tarfile.TarInfo, zipfile.ZipInfo)


class _Member(tarfile.TarInfo):
    """A member whose long name is read only if its declared length is plausible."""

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        limit = MAX_NAME_BYTES if member.type in NAME_TYPES else sys.maxsize
        if not 0 <= member.size <= limit:
            raise tarfile.ReadError(f"size of a member: {member.size}")
        return member


class UnsafeError(Exception):
    """The reason why an archive is not unpacked."""


def is_archive_name(name: str) -> bool:
    """Return whether a name ends as an archive's, so that it is no name of a model on a hub."""
    return name.endswith(SUFFIXES)


def unpack(archive: str | Path, folder: str | Path) -> Path:
    """Unpack a tar archive (plain, gz, bz2, xz) or a zip archive into a folder, and return it.

    Unpacks into a hidden folder inside `folder`, then renames each file and each new folder to
    its place. Replaces files of the same name and merges folders of the same name.
    Raises InputError, and unpacks nothing, if the file is no archive, is damaged or truncated,
    refers to files outside `folder` or to devices, is too large unpacked, or has a file where
    `folder` has a folder, or a folder where it has a file.
    """
    # Resolved, because tarfile's filter checks absolute paths, which may be too long to resolve.
    archive, folder = Path(archive), Path(folder).resolve()
    staging = folder / f".{archive.name}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        _extract(archive, staging)
        for path, place in list(_moves(staging, folder)):
            os.replace(path, place)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def _extract(archive: Path, folder: Path) -> None:
    with archive.open("rb") as stream:
        kind = "zip" if stream.read(len(ZIP)) == ZIP else "tar"
    try:
        (_extract_zip if kind == "zip" else _extract_tar)(archive, folder)
    except (UnsafeError, tarfile.FilterError) as error:
        raise InputError(
            f"{archive}: is not safe to unpack ({error}); nothing was unpacked, fetch it from its"
            " publisher"
        ) from error
    except (*DAMAGE, OSError) as error:
        if not isinstance(error, DAMAGE) and error.errno not in DAMAGE_ERRNOS:
            raise
        reason = str(error).split("\n")[0].rstrip(":")
        raise InputError(
            f"{archive}: is no whole {kind} archive ({reason}); remove it and run the command again"
            " to fetch it anew"
        ) from error


def byte_progress(title: str, total: int | None = None) -> tqdm:
    """Return a progress bar of bytes, which is updated rarely if stderr is a file."""
    interval_s = 0.2 if sys.stderr.isatty() else 30
    return tqdm(desc=title, total=total, unit="B", unit_scale=True, mininterval=interval_s)


def _extract_tar(archive: Path, folder: Path) -> None:
    with archive.open("rb") as stream:
        head = stream.read(CHUNK_BYTES)
    _check_xz(head)
    compression = next((name for magic, name in MAGIC.items() if head.startswith(magic)), "")
    with (
        archive.open("rb") as stream,
        # Not the "r|" modes: they accept a truncated gzip file.
        tarfile.open(fileobj=stream, mode=f"r:{compression}", tarinfo=_Member) as tar,
        byte_progress(f"unpack {archive.name}", archive.stat().st_size) as progress,
    ):
        for member in _within_size(tar, archive):
            _check_parents(member.name, folder)
            tar.extract(member, folder, filter="data")
            progress.update(stream.tell() - progress.n)
        if tar.fileobj is stream:
            # tarfile accepts an archive that is cut off between members, without end mark.
            stream.seek(tar.offset)
            if len(stream.read(TAR_BLOCK_BYTES)) < TAR_BLOCK_BYTES:
                raise tarfile.ReadError("it has no end mark")
        # Read the checksum of the compressed stream, which follows the end mark.
        rest, allowed = 0, _allowed_bytes(archive)
        while chunk := tar.fileobj.read(CHUNK_BYTES):
            rest += len(chunk)
            _check_size(rest, allowed)


def _check_parents(name: str, folder: Path) -> None:
    """Refuse a member below a link, by which tarfile's filter can be evaded (CVE-2025-4517)."""
    parents = PurePosixPath(name.lstrip("/")).parents
    if any((folder / parent).is_symlink() for parent in parents):
        raise UnsafeError(f"a member is below a link: {name[:80]!r}")


def _check_xz(head: bytes) -> None:
    """Refuse headers that make liblzma allocate too much memory, up to 4 GB."""
    try:
        lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES).decompress(head, 1)
    except lzma.LZMAError as error:
        if "Memory usage limit" in str(error):  # others: it is damaged, or no xz
            raise UnsafeError(f"xz needs more than {XZ_MEMORY_BYTES} bytes of memory") from error


def _extract_zip(archive: Path, folder: Path) -> None:
    title, size = f"unpack {archive.name}", archive.stat().st_size
    with zipfile.ZipFile(archive) as packed, byte_progress(title, size) as progress:
        members = packed.infolist()
        for member in members:
            name, mode = PurePosixPath(member.filename), member.external_attr >> 16
            # zipfile itself would silently write them elsewhere.
            if name.is_absolute() or ".." in name.parts or "\\" in member.filename:
                raise UnsafeError(f"{member.filename!r} is outside of the folder")
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise UnsafeError(f"{member.filename!r} is a link or a device")
        for member in _within_size(members, archive):
            packed.extract(member, folder)
            progress.update(member.compress_size)


def _within_size(members: Iterable[Member], archive: Path) -> Iterator[Member]:
    """Yield the members; raise UnsafeError when their total size exceeds the limit.

    A tar member's headers count, too: tarfile keeps them in memory.
    """
    total, allowed = 0, _allowed_bytes(archive)
    for member in members:
        if isinstance(member, tarfile.TarInfo):
            total += member.offset_data - member.offset + member.size
        else:
            total += member.file_size
        _check_size(total, allowed)
        yield member


def _allowed_bytes(archive: Path) -> int:
    return max(MAX_GROWTH * archive.stat().st_size, ANY_SIZE_BYTES)


def _check_size(unpacked_bytes: int, allowed: int) -> None:
    if unpacked_bytes > allowed:
        raise UnsafeError(f"it contains more than {allowed} bytes")


def _moves(source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    """Yield what to rename, to replace files and merge folders of the same name."""
    for path in sorted(source.iterdir()):
        existing = target / path.name
        is_folder = path.is_dir() and not path.is_symlink()
        if existing.exists() and is_folder != existing.is_dir():
            kinds = ("file", "folder") if is_folder else ("folder", "file")
            raise InputError(
                f"{existing}: is a {kinds[0]}, but a {kinds[1]} in the archive; nothing was "
                "unpacked, rename it and run the command again"
            )
        if is_folder and existing.is_dir():
            yield from _moves(path, existing)
        else:
            yield path, existing
