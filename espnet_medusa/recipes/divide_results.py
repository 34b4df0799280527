"""Divides the finished results of decoding jobs anew when the list of utterances or jobs changes.

A result belongs to its utterance, not to a job: each new job starts with a journal of the results
of its own utterances, and decodes the others.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.inference.journal import JOURNAL

Lines = dict[str, str]  # of a journal, by utterance


def divide_results(work_dir: Path, parts: Sequence[Iterable[str]]) -> int:
    """Replace ``output.<job>`` by folders with the journals of new jobs; return the results kept.

    Results of utterances that no job has are stored in ``work_dir``, for a later division. So are
    all results while the folders are replaced, in case of an interruption.

    Args:
        work_dir: Folder of the jobs' outputs; everything else in it is removed.
        parts: Utterance ids of each new job.
    """
    stored = work_dir / JOURNAL
    header, lines = _collect([stored, *work_dir.glob(f"output.*/{JOURNAL}")])
    if lines:
        _write(stored, header, lines.values())
    for path in work_dir.iterdir() if work_dir.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != stored:
            path.unlink()
    count = 0
    for job, keys in enumerate(parts, 1):
        own = [lines.pop(key) for key in keys if key in lines]
        if own:
            _write(work_dir / f"output.{job}" / JOURNAL, header, own)
        count += len(own)
    if lines:
        _write(stored, header, lines.values())
    else:
        stored.unlink(missing_ok=True)
    return count


def _collect(journals: Iterable[Path]) -> tuple[str, Lines]:
    """Return the header of the newest journal, and the results of all journals that have it."""
    header, lines = "", {}
    found = [path for path in journals if path.is_file()]
    for path in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        text = path.read_text(encoding="utf-8", errors="replace")
        first, *others = text.rstrip("\n").split("\n")
        header = header or first
        if first == header:  # else made with other options
            lines = dict(filter(None, map(_keyed, others))) | lines
    return header, lines


def _keyed(line: str) -> tuple[str, str] | None:
    with suppress(ValueError, LookupError, TypeError):  # an interruption truncated the line
        return json.loads(line)["key"], line
    return None


def _write(path: Path, header: str, lines: Iterable[str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in (header, *lines)))
