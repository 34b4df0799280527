"""The checkpoint of the epoch before, kept while ESPnet writes what belongs to the next one.

ESPnet writes over checkpoint.pth, then the epoch's weights and the links to the best ones. What is
killed meanwhile would leave a checkpoint that cannot be read, or one whose weights are not there.
So the last one lies beside until all is written. Resuming takes it up again: the epoch is trained
once more, and leaves the same files.
"""

from pathlib import Path

CHECKPOINT, BEFORE = "checkpoint.pth", "checkpoint.before.pth"


def set_aside(folder: Path) -> None:
    """Before ESPnet writes: keep the checkpoint, an empty file where there is none yet."""
    if (folder / CHECKPOINT).exists():
        (folder / CHECKPOINT).replace(folder / BEFORE)
    else:
        (folder / BEFORE).touch()


def drop(folder: Path) -> None:
    """When all is written: the new checkpoint counts."""
    (folder / BEFORE).unlink(missing_ok=True)


def take_up(folder: Path) -> None:
    """When training begins: if a run ended while it wrote, the checkpoint before counts."""
    before = folder / BEFORE
    if not before.exists():
        return
    if before.stat().st_size:
        before.replace(folder / CHECKPOINT)
    else:
        (folder / CHECKPOINT).unlink(missing_ok=True)
        before.unlink()
