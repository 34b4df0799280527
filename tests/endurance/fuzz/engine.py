"""Fuzz one reader with atheris, guided by code coverage, in this process.

python -m fuzz.engine READER FOLDER EXECUTIONS
"""

import hashlib
import sys
import traceback
from pathlib import Path

import atheris
import torch._weights_only_unpickler as unpickler
import transformers  # noqa: F401  imported first, so that it is not instrumented

with atheris.instrument_imports(include=["espnet_medusa"]):
    from fuzz.judge import DefectError, judge
    from fuzz.reader import CORPUS, DEFECTS, ENDS, Reader, committed_inputs, mapped_counts
    from fuzz.readers import READERS

unpickler.Unpickler.load = atheris.instrument_func(unpickler.Unpickler.load)
TIMEOUT_S = 20  # C code cannot be interrupted, so the process ends
WORDS = "words"


def prepare(name: str, reader: Reader, folder: Path) -> None:
    for part in (CORPUS, DEFECTS, ENDS):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for seed in (*reader.seeds(), *committed_inputs(name)):
        (folder / CORPUS / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in reader.words)
    (folder / WORDS).write_text("".join(f'"{word}"\n' for word in escaped))


def fuzz(reader: Reader, folder: Path, executions: int) -> None:
    counts = mapped_counts(folder)

    def test_one_input(data: bytes) -> None:
        counts["executions"] += 1
        try:
            counts[judge(reader, data)] += 1
        except DefectError as error:
            keep_defect(folder / DEFECTS, data, error)

    options = {
        "runs": executions, "max_len": reader.max_bytes, "seed": 1,
        "timeout": TIMEOUT_S, "rss_limit_mb": 0, "artifact_prefix": f"{folder / ENDS}/",
        "dict": folder / WORDS, "verbosity": 0,
    }  # fmt: skip
    words = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *words, str(folder / CORPUS)], test_one_input)
    atheris.Fuzz()


def keep_defect(folder: Path, data: bytes, error: DefectError) -> None:
    """Write the smallest input of each defect and its traceback."""
    name = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in error.place)
    path = folder / f"{name}.bin"
    if not path.is_file() or len(data) < path.stat().st_size:
        path.write_bytes(data)
        path.with_suffix(".txt").write_text("".join(traceback.format_exception(error)))


if __name__ == "__main__":
    chosen, place = READERS[sys.argv[1]], Path(sys.argv[2])
    prepare(sys.argv[1], chosen, place)
    fuzz(chosen, place, int(sys.argv[3]))
