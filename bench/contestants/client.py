"""The parent's side of a contestant's process."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contestants.base import Setup, Timed
from contestants.ways import Way

BENCH = Path(__file__).resolve().parents[1]
QUIET_SECONDS = 1.0  # longest wait until a contestant's threads sleep
POLL_SECONDS = 0.002


class ContestantFailed(Exception):
    """A contestant's process failed; the message has the reason."""


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Client:
    """One process; raises ContestantFailed if it cannot start."""

    def __init__(self, subject: Path, contestant: str, weights: str, setup: Setup):
        threads = str(setup.threads)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
        }
        command = [sys.executable, "-m", "contestants.worker", str(subject), contestant, weights]
        self.name = f"{contestant} {weights}"
        self.log = subject / f"{self.name.replace(' ', '_')}.log"
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [*command, json.dumps(asdict(setup))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self._read()

    def decode(self, way: Way, names: list[str]) -> Timed:
        """Decode inputs together."""
        return Timed.read(self._ask({"do": "decode", "way": asdict(way), "names": names}))

    def time_calls(self, nodes: int, repeats: int) -> dict[str, Any]:
        """Return seconds of our decoder calls with ``nodes`` new nodes, and the encoder frames."""
        return self._ask({"do": "calls", "nodes": nodes, "repeats": repeats})

    def stop(self) -> dict[str, int]:
        """End the process; return its peak memory, and its memory before loading the contestant."""
        memory = self._ask({"do": "stop"})
        self.process.communicate()
        return memory

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _ask(self, request: dict) -> dict[str, Any]:
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise ContestantFailed(f"{self.name} has ended: {last_line(self.log)}") from error
        answer = self._read()
        self._settle()
        return answer

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"ended: {last_line(self.log)}"}
        if "error" in answer:
            self.end()
            raise ContestantFailed(answer["error"])
        return answer

    def _settle(self) -> None:
        """Wait until all its threads sleep: OpenMP's threads spin for a while."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        until = time.monotonic() + QUIET_SECONDS
        while tasks.is_dir() and time.monotonic() < until and any(map(_runs, tasks.iterdir())):
            time.sleep(POLL_SECONDS)


def _runs(task: Path) -> bool:
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # the thread has ended
        return False
    return state == "R"
