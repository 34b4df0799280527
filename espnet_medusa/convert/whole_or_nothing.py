"""Folders that are complete or not there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from espnet_medusa.files.atomic import naming


@contextmanager
def whole_or_nothing(target: Path) -> Iterator[Path]:
    """A folder to write to, which becomes ``target`` if nothing goes wrong."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        made = Path(folder) / "made"
        made.mkdir()
        with naming(target):
            yield made
        os.rename(made, target)
