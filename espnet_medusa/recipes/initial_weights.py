"""The files of initial weights that an experiment's training started from."""

import json
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.files.output_folder import file_digest, file_state

RECORD = "initial_weights.json"


def check_start(exp_dir: Path, init_params: Sequence[str]) -> None:
    """Record the files of initial weights; before training resumes, compare them with the record.

    Resumed training does not load them, so its frozen weights would differ from the new files.
    Files with the recorded size and modification time are not read.

    Args:
        init_params: Initial weights in ESPnet's ``init_param`` form: a file name before any colon.

    Raises:
        InputError: A file is missing, or its content differs from the record.
    """
    record = exp_dir / RECORD
    paths = [Path(entry.partition(":")[0]) for entry in init_params]
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: no such file; train that model first")
    if not any(exp_dir.glob("checkpoint*.pth")) or not record.is_file():
        files = [
            {"state": file_state(path), "sha256": file_digest(path, "sha256")} for path in paths
        ]
        write_atomically(record, json.dumps(files, indent=1) + "\n")
        return
    recorded = json.loads(record.read_text(encoding="utf-8"))
    if len(paths) != len(recorded) or not all(map(_is_same, paths, recorded)):
        raise InputError(
            f"{exp_dir}: its training started from other weights than {' '.join(init_params)} now "
            f"contains; remove {exp_dir} to train it again, or restore the earlier weights"
        )


def _is_same(path: Path, recorded: dict) -> bool:
    if file_state(path) == recorded.get("state"):
        return True
    return file_digest(path, "sha256") == recorded["sha256"]
