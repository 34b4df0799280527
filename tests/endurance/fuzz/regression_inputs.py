"""Inputs that ran code that none before did, kept with the tests: a zip archive of each reader."""

import zipfile
from pathlib import Path

FOLDER = Path(__file__).with_name("corpus")
DATE = (1980, 1, 1, 0, 0, 0)  # the same inputs make the same archive


def read_regression_inputs(name: str) -> list[bytes]:
    """Those of a reader."""
    path = FOLDER / f"{name}.zip"
    if not path.is_file():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(member) for member in archive.infolist()]


def keep_inputs(name: str, corpus: Path) -> None:
    """Keep the files of a folder."""
    FOLDER.mkdir(exist_ok=True)
    with zipfile.ZipFile(FOLDER / f"{name}.zip", "w") as archive:
        for file in sorted(corpus.iterdir()):
            member = zipfile.ZipInfo(file.name, DATE)
            archive.writestr(member, file.read_bytes(), zipfile.ZIP_DEFLATED)
