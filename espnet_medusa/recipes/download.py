"""Resumable downloads of corpora; a file exists only when it is complete and its checksum matches.

A partial download is `NAME.partial`. `NAME.partial.version` has the ETag or date of the server's
file, if it sends one: then parts of two versions are never joined.
"""

import os
import sys
import time
from pathlib import Path

import requests
import urllib3
from tqdm import tqdm

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.archive import byte_progress
from espnet_medusa.data.files.output_folder import file_digest

CHUNK_BYTES = 1 << 18
TIMEOUT_S = (15, 60)  # for the connection, and for the next byte
MAX_FAILURES = 4  # consecutive failures without a received byte
RETRY_PAUSE_S = 1.0
DIGEST_LENGTHS = {"md5": 32, "sha1": 40, "sha256": 64}
TEMPORARY_STATUS = (408, 425, 429)


def _parse_checksum(text: str) -> tuple[str, str]:
    """Return algorithm and lower-case digest of `md5:...`, `sha1:...` or `sha256:...`."""
    algorithm, _, digest = text.strip().lower().partition(":")
    if len(digest) != DIGEST_LENGTHS.get(algorithm) or set(digest) - set("0123456789abcdef"):
        allowed = ", ".join(f"{name}:<{n} digits>" for name, n in DIGEST_LENGTHS.items())
        raise InputError(f"checksum {text!r}: allowed: {allowed}, hexadecimal")
    return algorithm, digest


def _find_damage(content: Path, path: Path, expected: tuple[str, str] | None) -> str | None:
    """Return a message about `path` if `content` has another checksum than expected, else None."""
    if expected is None:
        return None
    algorithm, digest = expected
    found, size = file_digest(content, algorithm), content.stat().st_size
    if found == digest:
        return None
    return f"{path}: is damaged ({size} bytes): {algorithm} is {found}, expected {digest}"


def download(url: str, path: str | Path, checksum: str | None = None) -> Path:
    """Download a file, unless it exists already, and return its path.

    Raise InputError for a bad option, a file that the server lacks, a connection that keeps failing
    (the next call resumes), or another checksum (the download is removed).

    A ``checksum`` is such as `md5:...`. An existing file with another checksum is named on stderr
    and downloaded again. Without a checksum an existing file is not checked.
    """
    expected = None if checksum is None else _parse_checksum(checksum)
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url}: allowed: an address that starts with http:// or https://")
    path = Path(path)
    if path.exists():
        if (damage := _find_damage(path, path, expected)) is None:
            return path
        print(f"{damage}; downloading it again", file=sys.stderr)
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(f"{path}.partial")
    _fetch(url, path, partial)
    _version_file(partial).unlink(missing_ok=True)
    if damage := _find_damage(partial, path, expected):
        partial.unlink()
        raise InputError(
            f"{damage}; the download from {url} was removed: run the command again, and if the"
            " checksum differs again, check whether the publisher has changed the file"
        )
    os.replace(partial, path)
    return path


def _version_file(partial: Path) -> Path:
    return Path(f"{partial}.version")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(url: str, path: Path, partial: Path) -> None:
    """Download to `partial`; retry until attempts fail too often without a new byte."""
    failures = 0
    with requests.Session() as session, byte_progress(path.name) as progress:
        while True:
            size = _size(partial)
            try:
                return _fetch_rest(session, url, path, partial, progress)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                failures = 1 if _size(partial) > size else failures + 1
                if failures >= MAX_FAILURES:
                    raise InputError(
                        f"{path}: {url} cannot be downloaded ({_reason(error)}); {_size(partial)}"
                        " bytes are complete: run the command again to resume"
                    ) from error
            time.sleep(failures * RETRY_PAUSE_S)


def _reason(error: BaseException) -> str:
    """Return the message of the innermost cause; outer messages repeat address and objects."""
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(str(error).split()) or type(error).__name__


def _fetch_rest(
    session: requests.Session, url: str, path: Path, partial: Path, progress: tqdm
) -> None:
    """Download the rest of `partial`, or all if the server cannot resume or has a new version."""
    offset = _size(partial)
    headers = {"Accept-Encoding": "identity"}  # ranges are not defined for compressed transfers
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if _version_file(partial).exists():
            headers["If-Range"] = _version_file(partial).read_text(encoding="utf-8")
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable and offset:
            if response.headers.get("Content-Range") != f"bytes */{offset}":
                partial.unlink()
                _fetch_rest(session, url, path, partial, progress)
            return
        status = f"status {response.status_code} {response.reason}"
        if response.status_code >= 500 or response.status_code in TEMPORARY_STATUS:
            raise requests.HTTPError(status)
        if not response.ok:
            raise InputError(f"{path}: {url} cannot be downloaded: {status}; correct the address")
        start, total = _extent(response, offset)
        # Otherwise urllib3 discards the last bytes of an interrupted body; sizes are checked below.
        response.raw.enforce_content_length = False
        tag = response.headers.get("ETag", "W/")  # If-Range requires a strong ETag, or a date
        version = response.headers.get("Last-Modified") if tag.startswith("W/") else tag
        if start == 0:
            _version_file(partial).unlink(missing_ok=True)
        with partial.open("ab" if start else "wb") as stream:
            if start == 0 and version:
                _version_file(partial).write_text(version, encoding="utf-8")
            progress.reset(total)
            progress.update(start)
            for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                stream.write(chunk)
                progress.update(len(chunk))
    if total is not None and _size(partial) != total:
        raise requests.ConnectionError(f"the connection ended after {_size(partial)} of {total}")


def _extent(response: requests.Response, offset: int) -> tuple[int, int | None]:
    """Return the body's first position in the file, and the file's size in bytes if known."""
    if response.status_code != requests.codes.partial_content:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    span, _, total = response.headers.get("Content-Range", "").partition("/")
    if not span.startswith(f"bytes {offset}-"):
        raise requests.ConnectionError(f"requested bytes from {offset}, received '{span}'")
    return offset, int(total) if total.isdecimal() else None
