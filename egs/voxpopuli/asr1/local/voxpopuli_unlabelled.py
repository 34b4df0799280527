"""Segments of VoxPopuli's unlabelled sessions: the official ones, or by silences."""

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tqdm import tqdm
from voxpopuli_corpus import SEGMENT_TABLE, Corpus
from voxpopuli_transcripts import FETCH_AGAIN, read_rows

from espnet_medusa.data.audio.reader import measure_audio
from espnet_medusa.data.audio.source import AudioError
from espnet_medusa.data.audio.speech_segments import read_levels, segment_levels
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import DataProblem

# Kaldi's extract-segments and stage 3 allow ends up to this much after the audio's.
MAX_OVERSHOOT_S = 0.5
N_SHOWN = 3


@dataclass(frozen=True)
class Piece:
    """A segment of a session."""

    # `<session>_<language>_<number>` as in get_unlabelled_data; for segments between silences the
    # number is replaced by start and end in 10 ms.
    id: str
    start_s: float  # start in the session
    end_s: float  # end in the session


@dataclass
class Unlabelled:
    """Segments of sessions."""

    audio: dict[str, Path] = field(default_factory=dict)  # session to its audio file
    pieces: dict[str, list[Piece]] = field(default_factory=dict)  # session to its segments
    # One for each unusable session or segment.
    problems: list[DataProblem] = field(default_factory=list)


def find_sessions(corpus: Corpus, language: str, years: Iterable[str]) -> dict[str, Path]:
    """Find the audio of the sessions with a language's channel, in order.

    Raises:
        InputError: There are none.
    """
    years, suffix = list(years), f"_{language}"
    audio = {
        path.stem.removesuffix(suffix): path
        for year in years
        for path in sorted(corpus.year_folder(language, year).glob(f"*{suffix}.ogg"))
    }
    if not audio:
        raise InputError(
            f"{corpus.root / 'raw_audios' / language}: has no <year>/<session>_{language}.ogg of"
            f" {' '.join(years)}; correct --years, or omit --voxpopuli to download them"
        )
    return audio


def read_segment_table(
    path: Path, language: str, sessions: Mapping[str, Path], years: Iterable[str]
) -> Unlabelled:
    """Read the official segments of some sessions.

    Args:
        path: `unlabelled_v2.tsv.gz`: event_id (`<session>_<language>`), segment_no, start, end.
        language: Language of the rows to read.
        years: Years to read. Plenary sessions of these years without audio are problems, because
            a year's archive has all of them.

    Raises:
        InputError: The table cannot be read.
    """
    result, suffix, years = Unlabelled(), f"_{language}", set(years)
    missing: dict[str, int] = {}
    for number, row in read_rows(path, "\t"):
        try:
            if isinstance(row, str):
                raise ValueError(row)
            event, segment = row["event_id"], row["segment_no"]
            if not event.endswith(suffix) or event[:4] not in years:
                continue
            session = event.removesuffix(suffix)
            if session not in sessions:
                if "PLENARY" in session:
                    missing[session] = missing.get(session, 0) + 1
                continue
            piece = Piece(f"{event}_{segment}", *_times(row["start"], row["end"]))
        except KeyError as error:
            raise InputError(
                f"{path}: has no column {error} (there are {' '.join(row)}); fetch"
                f" {SEGMENT_TABLE} again"
            ) from error
        except ValueError as error:
            result.problems.append(
                DataProblem(str(path), f"line {number}", str(error), FETCH_AGAIN)
            )
            continue
        result.pieces.setdefault(session, []).append(piece)
    for session, count in missing.items():
        message = f"its audio is missing ({count} segments)"
        result.problems.append(DataProblem(str(path), session, message, "fetch its year again"))
    return result


def _times(start: str, end: str) -> tuple[float, float]:
    try:
        start_s, end_s = float(start), float(end)
    except ValueError:
        raise ValueError(f"has times that are no numbers: {start} {end}") from None
    if not (math.isfinite(start_s) and math.isfinite(end_s) and 0 <= start_s < end_s):
        raise ValueError(f"has impossible times: {start} {end}")
    return start_s, end_s


def segment_sessions(
    sessions: Mapping[str, Path],
    language: str,
    official: Mapping[str, list[Piece]],
    max_segment_s: float,
    nj: int = 1,
) -> Unlabelled:
    """Segment all sessions; unreadable ones become problems.

    Args:
        language: Language, for ids.
        official: Session to its official segments. Other sessions, and longer segments than
            ``max_segment_s``, are cut at silences.
        nj: Number of sessions that are read in parallel.
    """
    result = Unlabelled()
    given = {"language": language, "official": official, "max_segment_s": max_segment_s}
    work = partial(_segment_session, **given)
    with ThreadPoolExecutor(nj) as threads:
        results = threads.map(work, sessions.items())
        progress = tqdm(results, f"segment {language}", len(sessions), unit=" sessions")
        for (session, path), (pieces, problems) in zip(sessions.items(), progress, strict=True):
            result.problems += problems
            if pieces:
                result.audio[session], result.pieces[session] = path, pieces
    return result


def _segment_session(
    item: tuple[str, Path], language: str, official: Mapping[str, list[Piece]], max_segment_s: float
) -> tuple[list[Piece], list[DataProblem]]:
    session, path = item
    pieces: list[Piece] = []
    problems: list[DataProblem] = []
    try:
        duration_s = measure_audio(path)
        if session not in official:
            times = segment_levels(read_levels(path), max_segment_s)
            pieces = [_timed_piece(f"{session}_{language}", times_s) for times_s in times]
            if not pieces:
                raise AudioError("holds no sound", "remove the session")
        for piece in official.get(session, []):
            if piece.end_s > duration_s + MAX_OVERSHOOT_S:
                message = f"ends at {piece.end_s} s but the session at {duration_s:.2f} s"
                problems.append(DataProblem(str(path), piece.id, message, FETCH_AGAIN))
            elif piece.end_s - piece.start_s <= max_segment_s:
                pieces.append(piece)
            else:
                pieces += _cut_piece(path, piece, max_segment_s)
    except AudioError as error:
        message = error.message.removeprefix(f"{path}: ")
        return [], [DataProblem(str(path), session, message, error.remedy)]
    return pieces, problems


def _timed_piece(prefix: str, times_s: tuple[float, float]) -> Piece:
    start, end = (f"{round(time_s * 100):07d}" for time_s in times_s)
    return Piece(f"{prefix}_{start}-{end}", *times_s)


def _cut_piece(path: Path, piece: Piece, max_segment_s: float) -> list[Piece]:
    levels = read_levels(path, piece.start_s, piece.end_s)
    times = [
        (round(piece.start_s + start_s, 3), round(piece.start_s + end_s, 3))
        for start_s, end_s in segment_levels(levels, max_segment_s)
    ]
    return [_timed_piece(piece.id, times_s) for times_s in times]
