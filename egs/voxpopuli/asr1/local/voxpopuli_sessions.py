"""Divide unlabelled audio into a training and a validation set: whole sessions, no test audio.

Whisper-Medusa (arXiv 2409.15869) trains on Whisper's own texts of audio outside the test set.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.data_dir import Segment, make_spk2utt, parse_segment
from espnet_medusa.data.kaldi.dump_dir import DROPPED_UTTERANCES
from espnet_medusa.data.kaldi.table import read_table, sort_ids, write_table

UTT2SESSION = "utt2session"
# Tables that are indexed by utterance.
UTTERANCE_TABLES = ("segments", UTT2SESSION, "utt2spk", "utt2lang", "utt2dur")
HELD_OUT_ID = "in the test set"
HELD_OUT_TIME = "overlaps the test set"


@dataclass(frozen=True)
class DivisionOptions:
    """Options of the division."""

    # Minimum share of the utterances to validate on, in whole sessions.
    valid_fraction: float = 0.05
    margin_s: float = 2.0  # seconds around test utterances that are left out, too

    def __post_init__(self):
        if not 0 <= self.valid_fraction < 1:
            raise InputError(f"valid_fraction {self.valid_fraction}: must be 0 or more and below 1")
        if not self.margin_s >= 0:
            raise InputError(f"margin_s {self.margin_s}: must be 0 or more")


@dataclass
class Division:
    """Every utterance is in one of the three."""

    train: list[str] = field(default_factory=list)  # ids to train on, sorted
    valid: list[str] = field(default_factory=list)  # ids to validate on, sorted
    # Id to reason, which may have details after a colon.
    dropped: dict[str, str] = field(default_factory=dict)


def divide(
    places: Mapping[str, Segment],
    held_out: Mapping[str, Segment],
    options: DivisionOptions | None = None,
) -> Division:
    """Choose utterances to train and to validate on.

    Args:
        places: Session, start and end of each utterance, by id.
        held_out: The same for the test set; end -1 is the session's end.

    Raises:
        InputError: All utterances are dropped, or all are of one session.
    """
    options = options or DivisionOptions()
    result = Division(dropped=find_held_out(places, held_out, options.margin_s))
    left = {key: place.recording for key, place in places.items() if key not in result.dropped}
    if not left:
        raise InputError(
            f"none of {len(places)} utterances is left: all are of the test set; add audio, or "
            "give a smaller --margin_s"
        )
    valid = choose_sessions(left.values(), options.valid_fraction)
    for key in sort_ids(left):
        (result.valid if left[key] in valid else result.train).append(key)
    return result


def find_held_out(
    places: Mapping[str, Segment], held_out: Mapping[str, Segment], margin_s: float = 0.0
) -> dict[str, str]:
    """Return the reason for each utterance that is in the test set, by id or by time.

    Args:
        places: Session, start and end of each utterance, by id.
        held_out: The same for the test set, for every channel of a session.
        margin_s: Seconds before and after a test utterance that belong to it. With 0, adjacent
            segments do not overlap.
    """
    by_session: dict[str, list[tuple[str, Segment]]] = {}
    for key in sort_ids(held_out):
        by_session.setdefault(held_out[key].recording, []).append((key, held_out[key]))
    reasons = {}
    for key, place in places.items():
        others = by_session.get(place.recording, [])
        other = next((name for name, there in others if _overlap(place, there, margin_s)), None)
        if key in held_out:
            reasons[key] = HELD_OUT_ID
        elif other is not None:
            reasons[key] = f"{HELD_OUT_TIME}: {other}"
    return reasons


def _overlap(place: Segment, test: Segment, margin_s: float) -> bool:
    return place.start_s < _end(test) + margin_s and test.start_s - margin_s < _end(place)


def _end(place: Segment) -> float:
    return math.inf if place.end_s < 0 else place.end_s


def choose_sessions(sessions: Iterable[str], fraction: float) -> set[str]:
    """Choose whole sessions with at least a share of the utterances, reproducibly at random.

    The order of the sessions is that of their names' hashes.

    Args:
        fraction: Share; 0 chooses none.

    Raises:
        InputError: No session would remain for training.
    """
    counts = Counter(sessions)
    minimum = fraction * counts.total()
    chosen: set[str] = set()
    order = sorted(counts, key=lambda name: hashlib.sha256(name.encode()).digest())
    for session in order:
        if sum(counts[name] for name in chosen) >= minimum:
            break
        chosen.add(session)
    if chosen and len(chosen) == len(counts):
        # An earlier session can remain for training if the others are large enough.
        spare = [name for name in order[:-1] if counts.total() - counts[name] >= minimum]
        if not spare:
            raise InputError(
                f"{len(counts)} sessions cannot be divided into training and a validation set of"
                f" {fraction:g}; add sessions, or give a smaller --valid_fraction (0: no set)"
            )
        chosen.remove(max(spare, key=counts.get))
    return chosen


def read_places(data_dir: str | Path) -> dict[str, Segment]:
    """Read session, start and end of a data directory's utterances: utt2session or segments.

    Raises:
        InputError: Neither exists, or a line is malformed.
    """
    folder = Path(data_dir)
    name = next((name for name in (UTT2SESSION, "segments") if (folder / name).is_file()), None)
    if name is None:
        raise InputError(
            f"{folder}: has neither {UTT2SESSION} nor segments; write {UTT2SESSION} with lines"
            " <utterance> <session> <start> <end>"
        )
    places = {}
    for key, value in read_table(folder / name).items():
        try:
            places[key] = parse_segment(value)
        except ValueError as error:
            raise InputError(f"{folder / name}: {key}: {error}; correct the line") from error
    return places


def read_usable_places(data_dir: str | Path) -> dict[str, Segment]:
    """Read the places of the utterances in utt2spk.

    Raises:
        InputError: As ``read_places``, or an utterance has no place.
    """
    places = read_places(data_dir)
    keys = read_table(Path(data_dir) / "utt2spk")
    missing = next((key for key in keys if key not in places), None)
    if missing is not None:
        raise InputError(
            f"{data_dir}: {missing}: has no line in {UTT2SESSION}; prepare the data again"
        )
    return {key: places[key] for key in keys}


def write_subset(
    source: str | Path, target: str | Path, keys: Iterable[str], dropped: Mapping[str, str]
) -> None:
    """Write a data directory with some utterances of another one.

    Args:
        target: Folder to write; wav.scp is last, so that an interrupted run leaves none.
        dropped: Id to reason, for the list `dropped_utterances`; may be empty.
    """
    source, target, keys = Path(source), Path(target), set(keys)
    for name in ("wav.scp", *UTTERANCE_TABLES, DROPPED_UTTERANCES):
        (target / name).unlink(missing_ok=True)
    tables = {
        name: {key: value for key, value in read_table(source / name).items() if key in keys}
        for name in UTTERANCE_TABLES
        if (source / name).is_file()
    }
    for name, table in tables.items():
        write_table(target / name, table)
    write_table(target / "spk2utt", make_spk2utt(tables["utt2spk"]))
    if dropped:
        write_table(target / DROPPED_UTTERANCES, dropped)
    audio = read_table(source / "wav.scp")
    if "segments" in tables:
        keys = {parse_segment(value).recording for value in tables["segments"].values()}
    write_table(target / "wav.scp", {key: audio[key] for key in audio if key in keys})
