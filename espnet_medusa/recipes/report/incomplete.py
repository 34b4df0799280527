"""Sets that a report leaves out: the reason, and the command that completes them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.data.errors import InputError, one_line

TRAINING, DECODING, SCORING = 11, 12, 13  # stages of asr.sh


@dataclass(frozen=True)
class Incomplete:
    exp_dir: Path
    folder: Path  # of the decoded set, or of the experiment
    reason: str
    stage: int  # first stage to run again

    @property
    def command(self) -> str:
        """Command line that decodes or scores again; stage 11 wrote the experiment's script."""
        script = self.exp_dir / "run.sh"
        name = script if script.is_file() else "./run.sh"
        return f"{name} --stage {self.stage} --stop_stage {SCORING}"

    def __str__(self) -> str:
        return f"{self.folder}: {self.reason}; run {self.command}"


@dataclass
class IncompleteSets:
    """Collects the sets of a report that are not complete."""

    found: list[Incomplete] = field(default_factory=list)

    @contextmanager
    def noting(self, exp_dir: Path, folder: Path, stage: int = DECODING) -> Iterator[None]:
        """Note a user error of the block instead of raising it; a folder's first one counts."""
        try:
            yield
        except ValueError as error:
            if folder not in self:
                self.found.append(Incomplete(exp_dir, folder, one_line(error), stage))

    def __contains__(self, folder: Path) -> bool:
        return any(one.folder in (folder, *folder.parents) for one in self.found)

    def check_rest(self, complete: Sequence[object]) -> None:
        """Raise InputError with all reasons if nothing is complete."""
        if self.found and not complete:
            raise InputError("\n".join(map(str, self.found)))

    def markdown(self) -> str:
        """Return a section of the report; empty if all sets are complete."""
        if not self.found:
            return ""
        lines = "".join(
            f"- `{one.folder}`: {one.reason}; run `{one.command}`\n" for one in self.found
        )
        return f"## Not complete\n\nThe tables do not contain these sets:\n\n{lines}\n"
