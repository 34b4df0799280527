"""One line of progress on a terminal, now and then a line in a file."""

import shutil
import sys
import time
from pathlib import Path
from typing import TextIO


def clock(seconds: float) -> str:
    """Write a duration in seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class LiveLine:
    """A progress line that is rewritten in place, or repeated sparsely where it cannot be.

    Args:
        stream: Where to write; standard error by default.
        file_interval_s: Seconds between lines when the stream is not a terminal.
    """

    def __init__(self, stream: TextIO | None = None, file_interval_s: float = 30.0) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.file_interval_s = file_interval_s
        self.in_place = self.stream.isatty()
        self._shown = ""
        self._last_time = time.monotonic()

    def update(self, text: str, last: bool = False) -> None:
        """Show `text`; `last` shows it for good."""
        if self.in_place:
            width = shutil.get_terminal_size().columns
            end = "\n" if last else ""
            self.stream.write(f"\r\033[K{text[: width - 1]}{end}")
            self._shown = "" if last else text
        elif last or (
            text != self._shown and time.monotonic() - self._last_time >= self.file_interval_s
        ):
            self.stream.write(f"{text}\n")
            self._shown, self._last_time = text, time.monotonic()
        self.stream.flush()

    def print(self, text: str) -> None:
        """Print a lasting line above the progress line."""
        self.stream.write(f"\r\033[K{text}\n" if self.in_place else f"{text}\n")
        if self.in_place and self._shown:
            self.stream.write(self._shown[: shutil.get_terminal_size().columns - 1])
        self.stream.flush()


class LogFollower:
    """Yields the complete lines that were added to a log since the last look.

    Attributes:
        restarted: Whether the log was shorter at the last look: it was begun anew.
    """

    def __init__(self, path: Path | str, from_end: bool = False) -> None:
        self.path = Path(path)
        self._offset = self.path.stat().st_size if from_end and self.path.exists() else 0
        self.restarted = False

    def new_lines(self) -> list[str]:
        """Complete lines written since the last call; none while the file does not exist."""
        if not self.path.exists():
            return []
        self.restarted = self.path.stat().st_size < self._offset
        if self.restarted:
            self._offset = 0
        with self.path.open("rb") as log:
            log.seek(self._offset)
            data = log.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        return data[:end].decode("utf-8", errors="replace").split("\n")[:-1]
