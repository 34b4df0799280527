"""The journal of a decoding job: an interrupted job resumes from it."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet_medusa.data.files.atomic import naming, write_atomically
from espnet_medusa.data.kaldi.table import join_words
from espnet_medusa.decoding.search.statistics import DecodingStatistics, write_statistics
from espnet_medusa.inference.longform.segment import (
    SEGMENTS,
    Segment,
    limit_segments,
    read_segment,
    write_segments_dir,
)

JOURNAL = "journal.jsonl"
FAILED = "failed_utterances"
SHORT = "short_utterances"  # too short for the encoder: their hypotheses are empty
STATISTICS = "statistics.json"
OUTPUTS = "text", "token", "token_int", "score"  # in ``1best_recog`` and so on
_LINE_BREAKS = re.compile(r"[\r\n]+")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NBestEntry:
    """One hypothesis of an n-best list, as ESPnet writes it; ``text`` is None without tokenizer."""

    text: str | None
    token: list[str]
    token_int: list[int]
    score: str
    others: dict[str, str] = field(default_factory=dict)  # values of other files, by file name


EMPTY = NBestEntry("", [], [], "0.0")  # a hypothesis without tokens


@dataclass(frozen=True)
class Decoded:
    key: str  # utterance id
    nbest: list[NBestEntry]  # hypotheses, the best first
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    language: str | None = None  # code; None: the model has no languages, or no speech was found
    # Segments of long audio; None: the utterance was decoded as a whole.
    segments: tuple[Segment, ...] | None = None
    trace: list[dict[str, Any]] | None = None  # as ``Decoding.trace``
    warning: str = ""  # why the hypothesis is empty without a search
    source: str = ""  # audio, language and previous text of the result: ``JobInput.source``
    digest: str = ""  # of their content: ``JobInput.digest``


@dataclass(frozen=True)
class Failed:
    """An utterance without a result, and the reason."""

    key: str
    reason: str


Outcome = Decoded | Failed


class Journal:
    """Results of a job, recorded one by one in its output folder.

    ``made_with`` describes model and options. If the folder's journal has other ones, it is
    renamed, with a warning.
    """

    def __init__(self, folder: Path, made_with: dict):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / JOURNAL
        self.failed: dict[str, str] = {}
        self.header = json.dumps(made_with, sort_keys=True, default=str)
        before, self.decoded = read_journal(self.path)
        reason = "its first line is damaged"
        if before is not None:
            names = " ".join(_differences(before, json.loads(self.header)))
            reason = names and f"these options or files changed: {names}"
        if self.decoded and reason:
            old = self.path.replace(self.path.with_suffix(".old.jsonl"))
            unused = f"{len(self.decoded)} results are not used, because {reason}"
            logger.warning(f"{self.path}: {unused}; they are now in {old.name}")
            self.decoded = {}
        self._rewrite()

    def discard(self, keys: Sequence[str]) -> None:
        """Remove the results of some utterances, also from the file."""
        for key in keys:
            self.decoded.pop(key, None)
        self._rewrite()

    def _rewrite(self) -> None:
        rows = [self.header + "\n", *map(_as_line, self.decoded.values())]
        write_atomically(self.path, "".join(rows))

    def add(self, decoded: Decoded) -> None:
        self.decoded[decoded.key] = decoded
        with naming(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(_as_line(decoded))

    def fail(self, failed: Failed) -> None:
        """Note an utterance without a result; a resumed job decodes it again."""
        self.failed[failed.key] = " ".join(failed.reason.split())

    def write_outputs(
        self, keys: Sequence[str], entries: Mapping[str, str], failed_as_empty: bool = False
    ) -> None:
        """Write ESPnet's files, in the order of the keys, and those of ``write_summary``.

        ``entries`` has the values in wav.scp, for long audio. With ``failed_as_empty``, failed
        utterances have an empty hypothesis, because ESPnet's scoring pairs lines by their number.
        """
        results = {key: self.decoded[key] for key in keys if key in self.decoded}
        failed = {key: self.failed[key] for key in keys if key in self.failed}
        lines: dict[Path, list[str]] = {}
        empty = {key: Decoded(key, [EMPTY]) for key in failed if failed_as_empty}
        written = results | empty
        for key in filter(written.__contains__, dict.fromkeys(keys)):
            for rank, hypothesis in enumerate(written[key].nbest, start=1):
                is_long = written[key].segments is not None
                for name, value in _espnet_values(hypothesis, is_long).items():
                    path = self.folder / f"{rank}best_recog" / name
                    lines.setdefault(path, []).append(f"{key} {value}\n")
        for name in {*OUTPUTS, *(path.name for path in lines)}:
            for path in {*self.folder.glob(f"[0-9]*best_recog/{name}")} - lines.keys():
                path.unlink()  # of an earlier run
        for path, written in lines.items():
            write_atomically(path, "".join(written))
        write_summary(self.folder, results, failed, entries)
        short = [f"{key} {one.warning}\n" for key, one in results.items() if one.warning]
        (self.folder / SHORT).unlink(missing_ok=True)
        if short:
            write_atomically(self.folder / SHORT, "".join(short))


def read_journal(path: Path) -> tuple[dict[str, Any] | None, dict[str, Decoded]]:
    """Return ``made_with`` and the results; None: no file, or its first line is damaged."""
    if not path.is_file():
        return None, {}
    # An interruption may cut a character in two. Texts may contain Unicode line separators.
    text = path.read_text(encoding="utf-8", errors="replace")
    header, *lines = text.rstrip("\n").split("\n")
    decoded: dict[str, Decoded] = {}
    for line in lines:
        # An interruption truncated the line, or another version wrote other fields.
        with suppress(json.JSONDecodeError, TypeError, KeyError):
            row = json.loads(line)
            row["nbest"] = [NBestEntry(**hypothesis) for hypothesis in row["nbest"]]
            row["statistics"] = DecodingStatistics(**row["statistics"])
            if row["segments"] is not None:
                row["segments"] = tuple(map(read_segment, row["segments"]))
            decoded[row["key"]] = Decoded(**row)
    made_with = None
    with suppress(json.JSONDecodeError):
        made_with = json.loads(header)
    return (made_with if isinstance(made_with, dict) else None), decoded


def write_summary(
    folder: Path, results: Mapping[str, Any], failed: Mapping[str, str], entries: Mapping[str, str]
) -> None:
    """Write ``statistics.json``, ``failed_utterances`` and, for long audio, ``segments``.

    Keys are utterance ids. ``results`` have ``statistics`` and ``segments`` as in ``Decoded``,
    ``failed`` has the reasons, ``entries`` the values in wav.scp.
    """
    statistics = {key: result.statistics for key, result in results.items()}
    write_statistics(folder / STATISTICS, statistics)
    lines = [f"{key} {reason}\n" for key, reason in failed.items()]
    write_atomically(folder / FAILED, "".join(lines))
    long = {
        key: limit_segments(one.segments, one.statistics.audio_seconds)
        for key, one in results.items()
        if one.segments is not None
    }
    write_segments_dir(folder / SEGMENTS, entries, long)


def _espnet_values(hypothesis: NBestEntry, is_long: bool) -> dict[str, str]:
    """Return the values for ESPnet's output files, by file name."""
    values = {
        "token": " ".join(hypothesis.token),
        "token_int": " ".join(map(str, hypothesis.token_int)),
        "score": hypothesis.score,
        **hypothesis.others,
    }
    text = hypothesis.text
    if text is not None:  # long audio has white space between segments
        values["text"] = join_words(text) if is_long else text
    # A line break would begin the line of another utterance.
    return {name: _LINE_BREAKS.sub(" ", value) for name, value in values.items()}


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the names of values that differ; those of a nested mapping, not the mapping's."""
    names: list[str] = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            names += _differences(before, after)
        elif before != after:
            names.append(name)
    return names


def _as_line(decoded: Decoded) -> str:
    # Not dataclasses.asdict, which copies each token: minutes for 100,000 utterances.
    return json.dumps(decoded, default=vars, ensure_ascii=False) + "\n"
