"""A reader's folder: inputs, defects and counts; and the inputs that are committed for it."""

import mmap
import struct
import zipfile
from dataclasses import astuple, dataclass
from pathlib import Path

CORPUS = "corpus"  # inputs that reached new code
DEFECTS = "defects"  # the smallest input of each defect, and its traceback
ENDS = "ends"  # inputs that ended the process
COUNTS = "counts"
WORDS = "words"
LOG = "log"
FORMAT = "<4Q"
COMMITTED = Path(__file__).with_name("corpus")
DATE = (1980, 1, 1, 0, 0, 0)  # the same inputs make the same archive


@dataclass
class Counts:
    """Numbers of inputs, by outcome."""

    executions: int = 0
    refused: int = 0
    read: int = 0
    defects: int = 0


def read_counts(path: Path) -> Counts:
    """Return the stored counts; zeros if the file does not exist."""
    return Counts(*struct.unpack(FORMAT, path.read_bytes())) if path.is_file() else Counts()


class CachedCounts:
    """Counts in a memory-mapped file, which survive a killed process."""

    def __init__(self, path: Path):
        self.counts = read_counts(path)
        path.write_bytes(self._packed())
        with path.open("r+b") as stream:
            self.memory = mmap.mmap(stream.fileno(), struct.calcsize(FORMAT))

    def _packed(self) -> bytes:
        return struct.pack(FORMAT, *astuple(self.counts))

    def keep(self) -> None:
        """Write the counts to the file."""
        self.memory[:] = self._packed()


def read_regression_inputs(name: str) -> list[bytes]:
    """Return the committed inputs of a reader."""
    path = COMMITTED / f"{name}.zip"
    if not path.is_file():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(member) for member in archive.infolist()]


def keep_inputs(name: str, corpus: Path) -> None:
    """Replace the committed inputs of a reader by the files of a folder."""
    COMMITTED.mkdir(exist_ok=True)
    with zipfile.ZipFile(COMMITTED / f"{name}.zip", "w") as archive:
        for file in sorted(corpus.iterdir()):
            member = zipfile.ZipInfo(file.name, DATE)
            archive.writestr(member, file.read_bytes(), zipfile.ZIP_DEFLATED)
