"""The journal of a decoding job: what is done survives an interruption."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.files.atomic import naming, write_atomically
from espnet_medusa.longform.segment import Segment, read_segment
from espnet_medusa.search.statistics import DecodingStatistics, write_statistics

JOURNAL = "journal.jsonl"
FAILED = "failed_utterances"


@dataclass(frozen=True)
class Hypothesis:
    """One line of the n-best list as ESPnet writes it."""

    text: str | None
    token: list[str]
    token_int: list[int]
    score: str


@dataclass(frozen=True)
class Decoded:
    """Result of one utterance; its language where it is known which, its segments if it has any."""

    key: str
    nbest: list[Hypothesis]
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    language: str | None = None
    segments: tuple[Segment, ...] | None = None


@dataclass(frozen=True)
class Failed:
    """An utterance without a result, and why."""

    key: str
    reason: str


Outcome = Decoded | Failed


class Journal:
    """Results of a job, written down one by one.

    Args:
        folder: The job's output folder.
        made_with: Describes model and options; results of other ones are not taken over.
    """

    def __init__(self, folder: Path, made_with: dict):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / JOURNAL
        self.decoded: dict[str, Decoded] = {}
        self.failed: dict[str, str] = {}
        header = json.dumps(made_with, sort_keys=True, default=str)
        lines = self._read_lines()
        if lines and lines[0] == header:
            for line in lines[1:]:
                self._take_over(line)
        kept = [header + "\n", *map(_as_line, self.decoded.values())]
        write_atomically(self.path, "".join(kept))

    def add(self, decoded: Decoded) -> None:
        """Write down a result."""
        self.decoded[decoded.key] = decoded
        with naming(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(_as_line(decoded))

    def fail(self, key: str, reason: str) -> None:
        """Note an utterance without a result; a resumed job tries it again."""
        self.failed[key] = " ".join(reason.split())

    def write_outputs(self, keys: list[str]) -> None:
        """Write ESPnet's files, ``statistics.json`` and the list of failures.

        Args:
            keys: Order of the utterances.
        """
        done = [self.decoded[key] for key in keys if key in self.decoded]
        lines: dict[Path, list[str]] = {}
        for decoded in done:
            for rank, hypothesis in enumerate(decoded.nbest, start=1):
                for name, value in _files(hypothesis).items():
                    path = self.folder / f"{rank}best_recog" / name
                    lines.setdefault(path, []).append(f"{decoded.key} {value}\n")
        for path, written in lines.items():
            write_atomically(path, "".join(written))
        write_statistics(
            self.folder / "statistics.json", {decoded.key: decoded.statistics for decoded in done}
        )
        failed = "".join(f"{key} {self.failed[key]}\n" for key in keys if key in self.failed)
        write_atomically(self.folder / FAILED, failed)

    def _read_lines(self) -> list[str]:
        if not self.path.is_file():
            return []
        # An interruption may cut a letter; a text may hold a line separator of Unicode.
        return self.path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")

    def _take_over(self, line: str) -> None:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            return  # the line that an interruption cut
        nbest = [Hypothesis(**hypothesis) for hypothesis in row["nbest"]]
        statistics = DecodingStatistics(**row["statistics"])
        segments = row.get("segments")
        if segments is not None:
            segments = tuple(read_segment(fields) for fields in segments)
        language = row.get("language")
        self.decoded[row["key"]] = Decoded(row["key"], nbest, statistics, language, segments)


def _files(hypothesis: Hypothesis) -> dict[str, str]:
    """What ESPnet's files say of a hypothesis, by their names."""
    files = {
        "token": " ".join(hypothesis.token),
        "token_int": " ".join(map(str, hypothesis.token_int)),
        "score": hypothesis.score,
    }
    return files if hypothesis.text is None else {**files, "text": hypothesis.text}


def _as_line(decoded: Decoded) -> str:
    # Not by asdict, which copies each token: of 100,000 utterances that takes minutes.
    return json.dumps(decoded, default=vars, ensure_ascii=False) + "\n"
