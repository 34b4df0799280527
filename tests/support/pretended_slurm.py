"""Mock sbatch, squeue and scancel, which start every task at once, on this machine.

They keep a task's state in a file `<job>.<task>`, of one line `STATE|reason`, and its process id
in `<job>.<task>.pid`. squeue prints these states.
"""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


class PretendedSlurm:
    """Puts the programs first in PATH; the methods read and write the tasks' states."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.states, self.programs = folder / "states", folder / "bin"
        self.states.mkdir(parents=True)
        self.programs.mkdir()
        for name in ("sbatch", "squeue", "scancel"):
            path = self.programs / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} {name} "$@"\n')
            path.chmod(0o755)
        monkeypatch.setenv("PRETENDED_SLURM", str(self.states))
        monkeypatch.setenv("PATH", str(self.programs), prepend=os.pathsep)

    def set_state(self, job: int, task: int, state: str) -> None:
        write_state(self.states / f"{job}.{task}", state)

    def forget(self) -> None:
        for path in state_files(self.states, "*"):
            path.unlink()

    def close_down(self) -> None:
        (self.states / "down").touch()

    def submitted(self) -> list[str]:
        return (self.states / "submitted").read_text().split("\n")


def state_files(states: Path, job: str) -> list[Path]:
    return [path for path in states.glob(f"{job}.*") if re.fullmatch(r"\d+\.\d+", path.name)]


def write_state(path: Path, state: str) -> None:
    """Write atomically: squeue may read meanwhile."""
    staging = path.with_name(f"{path.name}.{os.getpid()}.partial")
    staging.write_text(state)
    staging.replace(path)


def sbatch(states: Path, options: list[str]) -> int:
    script = options[-1]
    named = dict(option.lstrip("-").partition("=")[::2] for option in options[:-1])
    if "account" in named:
        print("sbatch: error: Invalid account", file=sys.stderr)
        return 1
    (states / "submitted").write_text("\n".join(options))
    job = 1 + max((int(path.name.split(".")[0]) for path in state_files(states, "*")), default=0)
    first, last = map(int, named["array"].split("%")[0].split("-"))
    for task in range(first, last + 1):
        write_state(states / f"{job}.{task}", "PENDING|None")
        words = [sys.executable, "-IS", __file__, "task", str(job), str(task), script]
        words += [named["output"], named["open-mode"]]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(words, start_new_session=True, **quiet)
    print(job)
    return 0


def task(states: Path, options: list[str]) -> int:
    job, number, script, output, mode = options
    state = states / f"{job}.{number}"
    state.with_suffix(f".{number}.pid").write_text(str(os.getpid()))
    write_state(state, "RUNNING|None")
    names = {"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_JOB_ID": job, "SLURM_JOB_ID": job}
    variables = os.environ | names
    log = output.replace("%%", "\0").replace("%a", number).replace("\0", "%")
    with open(log, "ab" if mode == "append" else "wb") as stream:
        done = subprocess.run(["bash", script], env=variables, stdout=stream, stderr=stream)
    write_state(state, "FAILED|NonZeroExitCode" if done.returncode else "COMPLETED|None")
    return 0


def squeue(states: Path, options: list[str]) -> int:
    if (states / "down").exists():
        print("slurm_load_jobs error: Unable to contact slurm controller", file=sys.stderr)
        return 1
    job = next(option for option in options if option.startswith("--jobs=")).partition("=")[2]
    files = state_files(states, job)
    if not files:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    for path in files:
        print(f"{path.name.split('.')[1]}|{path.read_text()}")
    return 0


def scancel(states: Path, options: list[str]) -> int:
    """End the tasks of `JOB`, or `JOB_TASK`."""
    job, _, number = options[-1].partition("_")
    for path in state_files(states, job):
        waits_or_runs = path.read_text().startswith(("PENDING", "RUNNING"))
        if waits_or_runs and number in ("", path.name.split(".")[1]):
            write_state(path, "CANCELLED|None")  # before: a task may cancel itself
            with suppress(FileNotFoundError, ProcessLookupError):
                os.killpg(int((states / f"{path.name}.pid").read_text()), signal.SIGKILL)
    return 0


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    sys.exit(globals()[name](Path(os.environ["PRETENDED_SLURM"]), rest))
