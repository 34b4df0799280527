"""One defect of a data directory, said in one line."""

from collections.abc import Iterable
from dataclasses import dataclass

from espnet_medusa.errors import InputError


@dataclass(frozen=True)
class DataProblem:
    """A defect and how to remove it.

    Attributes:
        file: The file that holds the defect.
        id: Utterance, recording or speaker id, or `line N`; empty for the whole file.
        message: What is wrong, with the value received.
        remedy: What the user can do about it.
    """

    file: str
    id: str
    message: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.id}" if self.id else self.file
        return " ".join(f"{where}: {self.message}; {self.remedy}".split())


class DataError(InputError):
    """Carries every problem that was found, not just the first one.

    Attributes:
        problems: The problems; `str()` of the error has one line for each.
    """

    def __init__(self, problems: Iterable[DataProblem]):
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
