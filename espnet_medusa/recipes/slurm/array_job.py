"""An array job of Slurm: the same command for each number, each with its log."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.data.errors import InputError

TASK = "${SLURM_ARRAY_TASK_ID}"
SCRIPT = """\
#!/usr/bin/env bash
cd {folder} || exit
[ ! -f path.sh ] || . ./path.sh
ending={endings}{task}.ending
rm -f "${{ending}}"
echo '#' {command}
echo "# started at $(date) on ${{SLURMD_NODENAME:-$(hostname)}}, by Slurm's job" \\
    "${{SLURM_ARRAY_JOB_ID}}_{task}, start $((${{SLURM_RESTART_COUNT:-0}} + 1))"
{launcher}{command}
status=$?
echo "${{status}} ${{SLURM_RESTART_COUNT:-0}}" > "${{ending}}.new"
mv "${{ending}}.new" "${{ending}}"
exit ${{status}}
"""


@dataclass(frozen=True)
class Ending:
    """Exit status of a task, and how often Slurm restarted it, as in the task's ending file."""

    status: int
    restarts: int


@dataclass(frozen=True)
class ArrayJob:
    numbers: range
    command: tuple[str, ...]
    log: str  # log file of each task
    launcher: str = ""  # shell words before the command, such as ``srun ``
    append: bool = False  # whether tasks append to an existing log
    # Text in command and log that is replaced by the task's number; None: there is none.
    placeholder: str | None = "JOB"

    @property
    def name(self) -> str:
        """Name of the log without its number: `asr_inference` of asr_inference.JOB.log."""
        return Path(self.log).name.replace(f".{self.placeholder}", "").removesuffix(".log")

    @property
    def folder(self) -> Path:
        """Folder of the log; its subfolder `q` has the other files of the job, as in Kaldi."""
        return Path(self.log).absolute().parent

    @property
    def job_file(self) -> Path:
        """File with Slurm's id of the job, while the job is in the queue."""
        return self.folder / "q" / f"{self.name}.job"

    def log_of(self, number: int) -> Path:
        return Path(str(number).join(self._split(self.log)))

    def ending_file(self, number: int) -> Path:
        """Return the file into which a task writes its exit status."""
        return self.folder / "q" / f"{self.name}.{number}.ending"

    def ending(self, number: int) -> Ending | None:
        """Return how a task ended; None: it has not written its ending file."""
        try:
            status, restarts = self.ending_file(number).read_text(encoding="utf-8").split()
        except (OSError, ValueError):  # missing, or not yet synchronized by a network disk
            return None
        return Ending(int(status), int(restarts))

    def script(self, folder: Path) -> str:
        """Return the script for sbatch; the command runs in `folder`."""
        return SCRIPT.format(
            folder=shlex.quote(str(folder)),
            endings=shlex.quote(f"{self.folder}/q/{self.name}."),
            command=" ".join(map(self._quote, self.command)),
            launcher=self.launcher,
            task=TASK,
        )

    def sbatch_options(self, most_at_once: int | None) -> list[str]:
        """Return the job's options of sbatch; raise InputError if Slurm refuses the log's name.

        ``most_at_once`` is the maximum number of parallel tasks; None: all.
        """
        # Only the log's own name is split: the current folder's name may contain JOB.
        name = "%a".join(self._split(self.log.replace("%", "%%")))
        log = Path(str(Path.cwd()).replace("%", "%%"), name)
        if "\\" in str(log):
            raise InputError(f"{self.log}: Slurm allows no log in a folder with a backslash")
        throttle = "" if most_at_once is None else f"%{most_at_once}"
        return [
            f"--job-name={self.name}",
            f"--array={self.numbers.start}-{self.numbers.stop - 1}{throttle}",
            f"--output={log}",
            # Without append, a restarted task overwrites its log.
            f"--open-mode={'append' if self.append else 'truncate'}",
            "--requeue",
        ]

    def _split(self, text: str) -> list[str]:
        return [text] if self.placeholder is None else text.split(self.placeholder)

    def _quote(self, word: str) -> str:
        return f'"{TASK}"'.join(shlex.quote(part) for part in self._split(word))
