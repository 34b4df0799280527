"""What became of inputs so far, in a file that survives its process."""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

FORMAT = "<4Q"
SIZE_BYTES = struct.calcsize(FORMAT)


@dataclass
class Counts:
    """How many.

    Attributes:
        executions: Inputs.
        refused, read: Of them.
        defects: The others.
    """

    executions: int = 0
    refused: int = 0
    read: int = 0
    defects: int = 0


def read_counts(path: Path) -> Counts:
    """Those that were kept; none where there is no file."""
    return Counts(*struct.unpack(FORMAT, path.read_bytes())) if path.is_file() else Counts()


class CachedCounts:
    """Counts that go on from those of the file."""

    def __init__(self, path: Path):
        self.counts = read_counts(path)
        path.write_bytes(self._packed())
        with path.open("r+b") as stream:
            self.memory = mmap.mmap(stream.fileno(), SIZE_BYTES)

    def _packed(self) -> bytes:
        counts = self.counts
        return struct.pack(FORMAT, counts.executions, counts.refused, counts.read, counts.defects)

    def keep(self) -> None:
        """Write them down."""
        self.memory[:] = self._packed()
