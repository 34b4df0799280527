"""Contestants' processes, asked in turn."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.contestant import Setup
from peers.transcriber import LongTask
from peers.way import Way

BENCH = Path(__file__).resolve().parents[1]
QUIET_SECONDS = 1.0  # longest wait for a contestant's threads to rest
POLL_SECONDS = 0.002


class ContestantFailed(Exception):
    """A contestant's process could not answer; says why."""


class Client:
    """One process.

    Args:
        subject: Folder of the subject.
        contestant: Who runs in it.
        weights: Their type.
        setup: Where it runs.
        worker: Module that answers: ``peers.worker`` decodes memories, ``peers.speech_worker``
            transcribes speech.

    Raises:
        ContestantFailed: It could not start.
    """

    def __init__(
        self,
        subject: Path,
        contestant: str,
        weights: str,
        setup: Setup,
        worker: str = "peers.worker",
    ):
        threads = str(setup.threads)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
        }
        command = [sys.executable, "-m", worker, str(subject), contestant, weights]
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

    @property
    def alive(self) -> bool:
        """Whether the process still answers."""
        return self.process.poll() is None

    def decode(self, way: Way, names: list[str]) -> dict[str, Any]:
        """One measurement, as the worker returns it."""
        return self._ask({"do": "decode", "way": asdict(way), "names": names})

    def decode_long(self, way: Way, name: str, task: LongTask) -> dict[str, Any]:
        """A recording of any length, with timestamps."""
        asked = {"do": "decode_long", "way": asdict(way), "names": [name], "task": asdict(task)}
        return self._ask(asked)

    def time_calls(self, nodes: int, repeats: int) -> dict[str, Any]:
        """Seconds of decoder calls (ours) with so many new nodes, and the memory's frames."""
        return self._ask({"do": "calls", "nodes": nodes, "repeats": repeats})

    def stop(self) -> dict[str, int]:
        """End the process; the peak of its memory, and what it held before it had a contestant."""
        memory = self._ask({"do": "stop"})
        self.process.communicate()
        return memory

    def end(self) -> None:
        """End the process, whatever state it is in."""
        self.process.kill()
        self.process.communicate()

    def _ask(self, question: dict) -> dict[str, Any]:
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise ContestantFailed(f"{self.name} is gone; see {self.log}") from error
        answer = self._read()
        self._settle()
        return answer

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"ended; see {self.log}"}
        if "error" in answer:
            self.end()
            raise ContestantFailed(answer["error"])
        return answer

    def _settle(self) -> None:
        """Wait until all its threads sleep: OpenMP's workers spin on for a while."""
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
