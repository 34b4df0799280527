"""Output folders that are complete or absent, and rewritten only after a change of inputs.

The output is written to a hidden folder next to the final one, which is renamed at the end. The
stamp of a staged output contains a digest of inputs and options, and the size of each file.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import naming

STAMP = ".stamp.json"
CHUNK_BYTES = 1 << 20


def digest_of_inputs(tables: Iterable[Path], audio: Iterable[Path], options: Mapping) -> str:
    """Return a hexadecimal digest of everything that an output depends on.

    The content of ``tables`` counts; of ``audio``, whose files may be missing, only size, mode and
    modification time. ``options`` are JSON values.
    """
    digest = hashlib.sha256(json.dumps(dict(options), sort_keys=True).encode("utf-8"))
    for path in tables:
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    for path in sorted(set(audio)):
        try:
            status = path.stat()
            facts = (status.st_size, status.st_mtime_ns, status.st_mode)
        except OSError:
            facts = "missing"
        digest.update(f"\0{path}\0{facts}".encode())
    return digest.hexdigest()


def file_state(path: Path) -> str:
    """Return size and modification time of a file, to notice that it has changed."""
    status = path.stat()
    return f"{status.st_size} bytes, changed {status.st_mtime_ns}"


def file_digest(path: Path, algorithm: str) -> str:
    """Return the hexadecimal digest of a file; ``algorithm`` is a name for ``hashlib.new``."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def is_up_to_date(output_dir: str | Path, expected: str) -> bool:
    """Return whether a folder has this digest and all of its files in full length."""
    return _read_stamp(Path(output_dir)) == _make_stamp(Path(output_dir), expected)


def check_output_dir(output_dir: str | Path, inputs: Iterable[str | Path]) -> None:
    """Raise InputError if writing `output_dir` would delete one of the input folders or files."""
    for folder in inputs:
        if Path(folder).resolve().is_relative_to(Path(output_dir).resolve()):
            message = f"it would replace the input {folder}; choose another folder"
            raise InputError(f"{output_dir}: {message}")


@contextmanager
def staged_output(output_dir: str | Path, made_from: str) -> Iterator[Path]:
    """Yield a folder to write to; it becomes `output_dir` if the block ends without error.

    It replaces an earlier output of this function, and its stamp has the digest `made_from`.
    Raises ValueError if `output_dir` has files but no stamp.
    """
    output_dir = Path(output_dir)
    if output_dir.exists() and _read_stamp(output_dir) is None and any(output_dir.iterdir()):
        raise ValueError(
            f"{output_dir}: has files, but no readable {STAMP}, which this command writes; remove"
            " it, or choose another folder"
        )
    place = output_dir.resolve()  # of a link to another disk, its target is replaced
    place.parent.mkdir(parents=True, exist_ok=True)
    staging, old = (place.parent / f".{place.name}.{state}" for state in ("partial", "old"))
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        with naming(output_dir):
            yield staging
            stamp = json.dumps(_make_stamp(staging, made_from), indent=0)
            (staging / STAMP).write_text(stamp, encoding="utf-8")
        shutil.rmtree(old, ignore_errors=True)
        if place.exists():
            os.rename(place, old)
        os.rename(staging, place)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def cached_output(folder: Path, made_from: str) -> Iterator[Path | None]:
    """Yield a folder as ``staged_output``; None if ``folder`` is up to date.

    Processes that need the same folder wait for each other, so it is written once.
    """
    if not is_up_to_date(folder, made_from):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not is_up_to_date(folder, made_from):
                with staged_output(folder, made_from) as staging:
                    yield staging
                return
    yield None


def _make_stamp(folder: Path, made_from: str) -> dict:
    sizes = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != STAMP
    }
    return {"fingerprint": made_from, "sizes_bytes": sizes}


def _read_stamp(folder: Path) -> dict | None:
    try:
        return json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to write to; it becomes the new folder `target` if the block has no error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
        folder = Path(temporary) / "folder"
        folder.mkdir()
        with naming(target):
            yield folder
        os.rename(folder, target)
