"""Corpus downloads: they go on where they broke off, and a file is whole and checked or not there.

While it is fetched, a file is called `NAME.partial`; `NAME.partial.version` holds what the server
calls this version of it (ETag or date), so that two versions are never joined.
"""

import hashlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import requests
import urllib3
from tqdm import tqdm

from espnet_medusa.errors import InputError

CHUNK_BYTES = 1 << 18
TIMEOUT_S = (15, 60)  # to connect; without a byte
# Failures in a row, without a byte between them; then the user decides.
MAX_FAILURES = 4
RETRY_PAUSE_S = 1.0
DIGEST_LENGTHS = {"md5": 32, "sha1": 40, "sha256": 64}
TEMPORARY_STATUS = (408, 425, 429)


@dataclass(frozen=True)
class Checksum:
    """What a file must hash to: `algorithm:digest`, hexadecimal, lower case."""

    algorithm: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> "Checksum":
        """Read `md5:...`, `sha1:...` or `sha256:...`.

        Raises:
            InputError: Another algorithm, or no hexadecimal digest of its length.
        """
        algorithm, _, digest = text.strip().lower().partition(":")
        if len(digest) != DIGEST_LENGTHS.get(algorithm) or set(digest) - set("0123456789abcdef"):
            allowed = ", ".join(f"{name}:<{n} digits>" for name, n in DIGEST_LENGTHS.items())
            raise InputError(f"checksum {text!r}: allowed are {allowed}, hexadecimal")
        return cls(algorithm, digest)

    def of(self, path: Path) -> str:
        """Hash a file with this algorithm."""
        digest = hashlib.new(self.algorithm)
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()


def download(url: str, path: str | Path, checksum: str | None = None) -> Path:
    """Fetch a file, unless it is there already.

    Args:
        url: Where from, http or https.
        path: Where to; its folder is made.
        checksum: Such as `md5:...`. A file that is there but differs is named on stderr and
            fetched again; without a checksum it is taken as it is.

    Returns:
        `path`, complete.

    Raises:
        InputError: A bad option; the server has no such file; the connection keeps failing (the
            next call goes on from there); what was fetched has another checksum (it is removed,
            the next call starts anew). One line with file, values and remedy.
        OSError: The file cannot be written.
    """
    wanted = None if checksum is None else Checksum.parse(checksum)
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url}: is no address; it must start with http:// or https://")
    path = Path(path)
    if path.exists():
        damage = None if wanted is None else _damage(path, path, wanted)
        if damage is None:
            return path
        print(f"{damage}; it is fetched again", file=sys.stderr)
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(f"{path}.partial")
    _fetch(url, path, partial)
    _version_file(partial).unlink(missing_ok=True)
    damage = None if wanted is None else _damage(partial, path, wanted)
    if damage is not None:
        partial.unlink()
        raise InputError(
            f"{damage}; what {url} sent was removed: run the command again to fetch it anew, and"
            " if the same comes again, look whether the publisher has changed the file"
        )
    os.replace(partial, path)
    return path


def _damage(content: Path, path: Path, wanted: Checksum) -> str | None:
    """Say how a file's content differs from its checksum; None if it does not."""
    found = wanted.of(content)
    if found == wanted.digest:
        return None
    return (
        f"{path}: is damaged ({content.stat().st_size} bytes): {wanted.algorithm} is {found},"
        f" expected {wanted.digest}"
    )


def _version_file(partial: Path) -> Path:
    return Path(f"{partial}.version")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(url: str, path: Path, partial: Path) -> None:
    """Fetch to `partial`, again and again as long as bytes arrive."""
    failures = 0
    # A log file gets a line now and then, not a redrawn bar.
    interval_s = 0.2 if sys.stderr.isatty() else 30
    with (
        requests.Session() as session,
        tqdm(desc=path.name, unit="B", unit_scale=True, mininterval=interval_s) as progress,
    ):
        while True:
            size = _size(partial)
            try:
                return _fetch_rest(session, url, path, partial, progress)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                failures = 1 if _size(partial) > size else failures + 1
                if failures >= MAX_FAILURES:
                    raise InputError(
                        f"{path}: {url} cannot be fetched ({_reason(error)}); {_size(partial)}"
                        " bytes are there: run the command again to go on from them"
                    ) from error
            time.sleep(failures * RETRY_PAUSE_S)


def _reason(error: BaseException) -> str:
    """Keep the innermost cause: what wraps it repeats address and object names."""
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(str(error).split()) or type(error).__name__


def _fetch_rest(
    session: requests.Session, url: str, path: Path, partial: Path, progress: tqdm
) -> None:
    """Fetch what `partial` lacks; the whole file if the server cannot go on or has a new one."""
    offset = _size(partial)
    # A compressed transfer has no byte positions to go on from.
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if _version_file(partial).exists():
            headers["If-Range"] = _version_file(partial).read_text(encoding="utf-8")
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as answer:
        if answer.status_code == requests.codes.requested_range_not_satisfiable and offset:
            if answer.headers.get("Content-Range") == f"bytes */{offset}":
                return None
            partial.unlink()
            return _fetch_rest(session, url, path, partial, progress)
        _check_status(answer, url, path)
        start, total = _extent(answer, offset)
        # A body that is cut off keeps its last bytes this way; the size is compared below.
        answer.raw.enforce_content_length = False
        if start == 0:
            _version_file(partial).unlink(missing_ok=True)
        with partial.open("ab" if start else "wb") as stream:
            if start == 0 and (version := _version(answer)):
                _version_file(partial).write_text(version, encoding="utf-8")
            progress.reset(total)
            progress.update(start)
            for chunk in answer.raw.stream(CHUNK_BYTES, decode_content=False):
                stream.write(chunk)
                progress.update(len(chunk))
    if total is not None and _size(partial) != total:
        raise requests.ConnectionError(f"the connection ended after {_size(partial)} of {total}")
    return None


def _check_status(answer: requests.Response, url: str, path: Path) -> None:
    said = f"the server says {answer.status_code} {answer.reason}"
    if answer.status_code >= 500 or answer.status_code in TEMPORARY_STATUS:
        raise requests.HTTPError(said)
    if not answer.ok:
        raise InputError(f"{path}: {url} cannot be fetched: {said}; correct the address")


def _extent(answer: requests.Response, offset: int) -> tuple[int, int | None]:
    """Where the body starts in the file, and the size of the file in bytes, if it is said."""
    if answer.status_code != requests.codes.partial_content:
        length = answer.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    span, _, total = answer.headers.get("Content-Range", "").partition("/")
    if not span.startswith(f"bytes {offset}-"):
        raise requests.ConnectionError(f"asked for bytes from {offset}, the server sent '{span}'")
    return offset, int(total) if total.isdecimal() else None


def _version(answer: requests.Response) -> str | None:
    """What If-Range takes: an ETag that is not weak, or else the date."""
    tag = answer.headers.get("ETag", "W/")
    return answer.headers.get("Last-Modified") if tag.startswith("W/") else tag
