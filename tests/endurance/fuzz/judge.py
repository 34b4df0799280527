"""Within limits, a reader must refuse a file (one line per problem) or read it correctly."""

import os
import resource
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import DataError
from fuzz.reader import Reader

REFUSED, READ = "refused", "read"  # the allowed outcomes
SECONDS = 1.0  # of processor time
GROWTH = 100  # allowed memory, in multiples of the file's size
LONGEST_LINE = 4000  # characters of a refusal
NO_MEMORY = ("allocate memory", "out of memory", "bad_alloc", "MemoryError")
_STATM = os.open("/proc/self/statm", os.O_RDONLY)


class DefectError(Exception):
    """Any other outcome; ``place``: kind of error, last source line, in the package if possible."""

    def __init__(self, kind: str, error: BaseException | None = None):
        self.place, shown = kind, ""
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if "espnet_medusa" in frame.filename] or frames
            self.place += f" {Path(own[-1].filename).name}:{own[-1].lineno}" if own else " "
            shown = f": {type(error).__name__}: {error}"
        super().__init__(self.place + shown)


def judge(reader: Reader, data: bytes) -> str:
    """Read a file and return the outcome; raise DefectError if it is not allowed."""
    started = time.process_time()
    try:
        with address_space(reader.room_bytes + GROWTH * len(data)):
            reader.read(data)
        outcome = READ
    except InputError as error:
        _check_refusal(error)
        outcome = REFUSED
    except Exception as error:
        raise DefectError(type(error).__name__, error) from error
    if time.process_time() - started > SECONDS:
        raise DefectError(f"takes more than {SECONDS:g} s")
    return outcome


def _check_refusal(error: InputError) -> None:
    lines = str(error).split("\n")
    if not isinstance(error, DataError) and len(lines) > 1:
        raise DefectError("refusal of several lines", error) from error
    if not all(0 < len(line.strip()) <= LONGEST_LINE for line in lines):
        raise DefectError("refusal that is empty or too long", error) from error
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or any(word in str(cause) for word in NO_MEMORY):
            raise DefectError("requests more memory than the file justifies", cause) from error
        cause = cause.__cause__ or cause.__context__


@contextmanager
def address_space(more_bytes: int) -> Iterator[None]:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped_bytes = int(os.pread(_STATM, 64, 0).split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
