"""An array job of Slurm: the same command for each number, each with its log."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.errors import InputError

TASK = "${SLURM_ARRAY_TASK_ID}"
# Slurm's copy is what runs; the file shows what was asked for.
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
    """What a task itself left: its exit status, and how often Slurm had started it again."""

    status: int
    restarts: int


@dataclass(frozen=True)
class ArrayJob:
    """Tasks of one command.

    Attributes:
        numbers: Of the tasks.
        command: Its words.
        log: Log file of each task.
        launcher: Shell words before the command, such as ``srun ``.
        append: Whether the log goes on with what is there.
        placeholder: What stands for a task's number in command and log; None: nothing does.
    """

    numbers: range
    command: tuple[str, ...]
    log: str
    launcher: str = ""
    append: bool = False
    placeholder: str | None = "JOB"

    @property
    def name(self) -> str:
        """The log's name without number: `asr_inference` of asr_inference.JOB.log."""
        return Path(self.log).name.replace(f".{self.placeholder}", "").removesuffix(".log")

    @property
    def folder(self) -> Path:
        """The log's folder; what else the job writes is in `q` there, as Kaldi's jobs have it."""
        return Path(self.log).absolute().parent

    @property
    def script_file(self) -> Path:
        """What was submitted."""
        return self.folder / "q" / f"{self.name}.sh"

    @property
    def job_file(self) -> Path:
        """Slurm's id of the job, as long as it is in the queue."""
        return self.folder / "q" / f"{self.name}.job"

    def log_of(self, number: int) -> Path:
        """Log file of a task."""
        return Path(str(number).join(self._split(self.log)))

    def ending_file(self, number: int) -> Path:
        """Where a task says how it ended."""
        return self.folder / "q" / f"{self.name}.{number}.ending"

    def ending(self, number: int) -> Ending | None:
        """How a task says that it ended; None: it has not, or could not say so."""
        try:
            status, restarts = self.ending_file(number).read_text(encoding="utf-8").split()
        except (OSError, ValueError):  # not there, or not yet whole on another machine's disk
            return None
        return Ending(int(status), int(restarts))

    def script(self, folder: Path) -> str:
        """The script that sbatch takes.

        Args:
            folder: Where the command runs.
        """
        return SCRIPT.format(
            folder=shlex.quote(str(folder)),
            endings=shlex.quote(f"{self.folder}/q/{self.name}."),
            command=" ".join(map(self._quote, self.command)),
            launcher=self.launcher,
            task=TASK,
        )

    def sbatch_options(self, most_at_once: int | None) -> list[str]:
        """What sbatch must know of it.

        Args:
            most_at_once: Tasks that may run side by side; None: all.

        Raises:
            InputError: The name of the log is none that Slurm takes.
        """
        # This folder's own name may have a JOB.
        log = Path(
            str(Path.cwd()).replace("%", "%%"), "%a".join(self._split(self.log.replace("%", "%%")))
        )
        if "\\" in str(log):
            raise InputError(f"{self.log}: Slurm takes no log in a folder with a backslash")
        throttle = "" if most_at_once is None else f"%{most_at_once}"
        return [
            f"--job-name={self.name}",
            f"--array={self.numbers.start}-{self.numbers.stop - 1}{throttle}",
            f"--output={log}",
            # A task that starts again says itself what it had done before.
            f"--open-mode={'append' if self.append else 'truncate'}",
            "--requeue",
        ]

    def _split(self, text: str) -> list[str]:
        """What is around the task's number."""
        return [text] if self.placeholder is None else text.split(self.placeholder)

    def _quote(self, word: str) -> str:
        """A word of the command for the shell."""
        return f'"{TASK}"'.join(shlex.quote(part) for part in self._split(word))
