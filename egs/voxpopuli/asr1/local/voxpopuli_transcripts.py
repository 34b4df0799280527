"""Read VoxPopuli's transcripts: the annotation of sessions, or the tables of get_asr_data."""

import gzip
import math
import zlib
from ast import literal_eval
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from voxpopuli_corpus import SPLITS, Corpus

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import DataProblem

FETCH_AGAIN = "fetch the file again, or remove the utterance"
# Start and end (-1: the session's end) of an utterance without times.
WHOLE_SESSION_S = (0.0, -1.0)
TEXT_COLUMNS = {
    "raw": ("original_text", "raw_text"),
    "normalized": ("normed_text", "normalized_text"),
}
UNKNOWN_SPEAKER = "unknown"


@dataclass(frozen=True)
class Transcript:
    """One transcribed utterance."""

    id: str  # `<session>-<language>_<date>-<time>_<number>`, the name of get_asr_data's audio
    session: str  # such as `20180206-0900-PLENARY-15`
    split: str  # train, dev or test
    text: str  # transcript
    speaker: str  # a number, or `unknown`
    start_s: float  # start in the session
    end_s: float  # end in the session; -1 with start 0 if times are unknown
    audio: Path | None = None  # audio file of the utterance; None: it is a segment of the session

    @property
    def utterance_id(self) -> str:
        """The id with the speaker as prefix, as Kaldi's sorting requires."""
        return f"{self.speaker}-{self.id}"


@dataclass
class Transcripts:
    """The content of the tables."""

    utterances: dict[str, Transcript] = field(default_factory=dict)  # usable utterances by id
    problems: list[DataProblem] = field(default_factory=list)  # one for each unusable line
    n_bad_tests: int = 0  # number of unusable lines that are, or may be, of the test set
    # Sessions of unusable test utterances by id; training must not use them.
    bad_tests: dict[str, str] = field(default_factory=dict)
    n_fallback: int = 0  # number of utterances that only have the other kind of text


class _BadLine(ValueError):
    """The reason why a line is unusable."""


def read_transcripts(corpus: Corpus, language: str, text: str = "raw") -> Transcripts:
    """Read the transcripts of a language.

    Utterances have audio files if get_asr_data is complete; otherwise they are segments.

    Args:
        text: `raw` (punctuation, case, digits) or `normalized` (lower case, words); the other
            one is used for utterances that have only that.

    Raises:
        InputError: There is no table, or a table cannot be read.
    """
    annotation = corpus.annotation(language)
    annotated = Transcripts()
    if annotation is not None:
        annotated = _read_tables([annotation], "|", language, text)
    if not corpus.is_prepared(language):
        if annotation is None:
            raise InputError(
                f"{corpus.root}: has neither asr_{language}.tsv.gz nor asr_train.tsv,"
                f" asr_dev.tsv, asr_test.tsv in {corpus.prepared(language)}; omit"
                " --voxpopuli to download the corpus, or fetch them with its get_asr_data"
            )
        return annotated
    folder = corpus.prepared(language)
    prepared = _read_tables([folder / f"asr_{split}.tsv" for split in SPLITS], "\t", language, text)
    for key, utterance in prepared.utterances.items():
        timed = annotated.utterances.get(key, utterance)
        path = folder / key[:4] / f"{key}.ogg"
        prepared.utterances[key] = replace(
            utterance, audio=path, start_s=timed.start_s, end_s=timed.end_s
        )
    return prepared


def _read_tables(paths: list[Path], delimiter: str, language: str, text: str) -> Transcripts:
    transcripts = Transcripts()
    for path in paths:
        for number, row in read_rows(path, delimiter):
            where = f"line {number}"
            try:
                if isinstance(row, str):
                    raise _BadLine(row)
                if _column(row, "split") not in SPLITS:
                    continue  # VoxPopuli's split of unusable utterances is `invalid`
                where = _id_of(row)
                if where in transcripts.utterances:
                    raise _BadLine(f"occurs again in line {number}")
                transcripts.utterances[where], is_fallback = _parse(row, language, text)
                transcripts.n_fallback += is_fallback
            except _BadLine as error:
                transcripts.problems.append(DataProblem(str(path), where, str(error), FETCH_AGAIN))
                transcripts.n_bad_tests += isinstance(row, str) or row.get("split") == "test"
                session = "" if isinstance(row, str) else _session_of(row, where, language)
                if session and row.get("split") == "test":
                    transcripts.bad_tests[where] = session
    return transcripts


def read_rows(path: Path, delimiter: str) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yield line number and columns by name, or the error of the line.

    VoxPopuli's own scripts read these tables without quoting. Quotes around a whole field are
    removed.

    Raises:
        InputError: The file is missing, damaged or empty.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="\n") as stream:
            rows = (line.rstrip("\r\n").split(delimiter) for line in stream)
            header = next(rows, None)
            if header is None:
                raise InputError(f"{path}: is empty; fetch it again")
            for number, fields in enumerate(rows, 2):
                if len(fields) != len(header):
                    yield number, f"has {len(fields)} columns, not {len(header)}"
                else:
                    yield number, dict(zip(header, map(_unquote, fields), strict=True))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); fetch it again") from error


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"' and '"' not in value[1:-1].replace('""', ""):
        return value[1:-1].replace('""', '"')
    return value


def _column(row: Mapping[str, str], *names: str) -> str:
    for name in names:
        if name in row:
            return " ".join(row[name].split())
    raise _BadLine(f"has no column {' or '.join(names)} (there are {' '.join(row)})")


def _id_of(row: Mapping[str, str]) -> str:
    if "session_id" in row:
        return f"{_column(row, 'session_id')}-{_column(row, 'id_')}"
    return _column(row, "id")


def _session_of(row: Mapping[str, str], key: str, language: str) -> str:
    return "".join(row.get("session_id", "").split()) or key.rpartition(f"-{language}_")[0]


def _parse(row: Mapping[str, str], language: str, text: str) -> tuple[Transcript, bool]:
    """Return the transcript of a row, and whether its text is of the other kind."""
    key = _id_of(row)
    if len(key.split()) != 1:
        raise _BadLine(f"{key!r} is no id")
    session = _session_of(row, key, language)
    if not session:
        raise _BadLine(f"is not of the form <session>-{language}_<time>_<number>")
    other = next(kind for kind in TEXT_COLUMNS if kind != text)
    preferred = _column(row, *TEXT_COLUMNS[text])
    words = preferred or _column(row, *TEXT_COLUMNS[other])
    if not words:
        raise _BadLine("has no transcript")
    speaker = "_".join(_column(row, "speaker_id").split())
    start_s, end_s = parse_vad(row["vad"]) if "vad" in row else WHOLE_SESSION_S
    transcript = Transcript(
        id=key,
        session=session,
        split=row["split"],
        text=words,
        speaker=UNKNOWN_SPEAKER if speaker in ("", "None") else speaker,
        start_s=start_s,
        end_s=end_s,
    )
    return transcript, not preferred


def parse_vad(value: str) -> tuple[float, float]:
    """Parse `[(start, end), ...]`, the speech of an utterance in seconds of its session.

    Returns:
        Start of the first and end of the last part. Pauses between the parts are included, which
        get_asr_data removes.

    Raises:
        ValueError: The text has another form, or impossible times.
    """
    try:
        parts = [(float(part[0]), float(part[1])) for part in literal_eval(value)]
        times = [time for part in parts for time in part]
    except (ValueError, SyntaxError, TypeError, IndexError, MemoryError, RecursionError):
        raise _BadLine(f"has times that are no list of (start, end): {value[:60]}") from None
    is_ordered = all(before <= after for before, after in zip(times, times[1:], strict=False))
    if not times or not all(map(math.isfinite, times)) or not is_ordered or times[0] < 0:
        raise _BadLine(f"has impossible times: {value[:60]}")
    if times[-1] == times[0]:
        raise _BadLine(f"lasts 0 s: {value[:60]}")
    return times[0], times[-1]
