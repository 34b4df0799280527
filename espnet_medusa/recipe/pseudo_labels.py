"""Self-supervised training data: texts that a model wrote, without those that cannot be right.

Whisper-Medusa (arXiv 2409.15869) trains on what Whisper itself wrote, leaves out the 5% whose text
length least fits the audio, and what is in the test set.

The fit: r = ln(characters / seconds), its median m over all that have text and are not in the
test set, and |r - m|: the same for a text twice too long as for one half too short. The median
is not moved by the texts that are to be found. Characters are those of the text with single
spaces. The drop_fraction (rounded down: of fewer than 20 utterances 5% is none) with the largest
|r - m| goes; of equal ones that with the smaller id.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.data_dir import make_spk2utt
from espnet_medusa.kaldi.filter import DROPPED_UTTERANCES
from espnet_medusa.kaldi.segments import Segment, parse_segment
from espnet_medusa.kaldi.table import read_table, sort_ids, write_table

UTT2SESSION = "utt2session"
# Tables keyed by utterance that go along.
UTTERANCE_TABLES = ("segments", UTT2SESSION, "utt2spk", "utt2lang", "utt2dur")
NO_HYPOTHESIS = "no hypothesis"
EMPTY = "empty hypothesis"
HELD_OUT_ID = "in the test set"
HELD_OUT_TIME = "overlaps the test set"
MISFIT = "text length"


@dataclass(frozen=True)
class SelectionOptions:
    """What to keep.

    Attributes:
        drop_fraction: Share to drop for the length of their text.
        valid_fraction: Least share of the utterances to validate on, in whole sessions.
        margin_s: What lies nearer to the test set than this goes too.
    """

    drop_fraction: float = 0.05
    valid_fraction: float = 0.05
    margin_s: float = 2.0

    def __post_init__(self):
        for name in ("drop_fraction", "valid_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: must be 0 or more and below 1")
        if not self.margin_s >= 0:
            raise InputError(f"margin_s {self.margin_s}: must be 0 or more")


@dataclass(frozen=True)
class LabelledAudio:
    """An utterance and what a model heard in it.

    Attributes:
        text: Hypothesis with single spaces; None if there is no line for it.
        duration_s: Of its audio.
        place: Where it lies in its session.
    """

    text: str | None
    duration_s: float
    place: Segment


@dataclass
class Selection:
    """Every utterance is in one of the three.

    Attributes:
        train: Ids to train on, sorted.
        valid: Ids to validate on, sorted.
        dropped: Id to reason; what follows a colon is detail.
    """

    train: list[str] = field(default_factory=list)
    valid: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)

    def counts(self) -> Counter[str]:
        """How many were dropped for which reason."""
        return Counter(reason.split(":")[0] for reason in self.dropped.values())


def select(
    utterances: Mapping[str, LabelledAudio],
    held_out: Mapping[str, Segment],
    options: SelectionOptions | None = None,
) -> Selection:
    """Choose what to train and validate on.

    Args:
        utterances: By id.
        held_out: The test set: id to place; end -1 is the session's end.
        options: How much to leave out.

    Raises:
        InputError: Nothing is left, or one session alone cannot be split.
    """
    options = options or SelectionOptions()
    result = Selection(dropped=find_without_text(utterances))
    result.dropped |= find_held_out(
        _without(utterances, result.dropped), held_out, options.margin_s
    )
    fit = length_residuals(_without(utterances, result.dropped))
    for key in find_misfits(fit, options.drop_fraction):
        result.dropped[key] = f"{MISFIT}: {math.exp(fit[key]):.2f} times the usual"
    left = _without(utterances, result.dropped)
    if not left:
        reasons = ", ".join(f"{count} {name}" for name, count in result.counts().items())
        raise InputError(
            f"none of {len(utterances)} utterances is left ({reasons}); transcribe more audio, or"
            " see why there is no text"
        )
    sessions = {key: utterance.place.recording for key, utterance in left.items()}
    valid = choose_sessions(sessions.values(), options.valid_fraction)
    for key in sort_ids(left):
        (result.valid if sessions[key] in valid else result.train).append(key)
    return result


def _without(
    utterances: Mapping[str, LabelledAudio], dropped: Mapping[str, str]
) -> dict[str, LabelledAudio]:
    return {key: utterance for key, utterance in utterances.items() if key not in dropped}


def find_without_text(utterances: Mapping[str, LabelledAudio]) -> dict[str, str]:
    """Give the reason for each utterance that has no hypothesis or an empty one."""
    return {
        key: NO_HYPOTHESIS if utterance.text is None else EMPTY
        for key, utterance in utterances.items()
        if not utterance.text
    }


def find_held_out(
    utterances: Mapping[str, LabelledAudio], held_out: Mapping[str, Segment], margin_s: float = 0.0
) -> dict[str, str]:
    """Give the reason for each utterance that is in the test set, by id or by session and time.

    Args:
        utterances: By id.
        held_out: The test set: id to place. A place counts in every channel of its session.
        margin_s: Time before and behind a place that belongs to it. With 0, segments that only
            touch do not overlap.
    """
    by_session: dict[str, list[tuple[str, Segment]]] = {}
    for key in sort_ids(held_out):
        by_session.setdefault(held_out[key].recording, []).append((key, held_out[key]))
    found = {}
    for key, utterance in utterances.items():
        others = by_session.get(utterance.place.recording, [])
        place = utterance.place
        other = next((name for name, there in others if _overlap(place, there, margin_s)), None)
        if key in held_out:
            found[key] = HELD_OUT_ID
        elif other is not None:
            found[key] = f"{HELD_OUT_TIME}: {other}"
    return found


def _overlap(one: Segment, other: Segment, margin_s: float) -> bool:
    return one.start_s < _end(other) + margin_s and other.start_s - margin_s < _end(one)


def _end(place: Segment) -> float:
    return math.inf if place.end_s < 0 else place.end_s


def length_residuals(utterances: Mapping[str, LabelledAudio]) -> dict[str, float]:
    """Give r - m of each utterance (see the module); positive: its text is long."""
    rates = {
        key: math.log(len(utterance.text or "") / utterance.duration_s)
        for key, utterance in utterances.items()
    }
    centre = median(rates.values()) if rates else 0.0
    return {key: rate - centre for key, rate in rates.items()}


def find_misfits(residuals: Mapping[str, float], fraction: float) -> list[str]:
    """Choose the share of ids with the largest absolute residuals; of equal ones smaller ids."""
    # Sums in another order must not decide between texts that fit equally well.
    worst = sorted(sort_ids(residuals), key=lambda key: -round(abs(residuals[key]), 9))
    # 0.57 * 100 is a little less than 57.
    return worst[: int(fraction * len(residuals) + 1e-9)]


def choose_sessions(sessions: Iterable[str], fraction: float) -> set[str]:
    """Choose whole sessions that hold at least a share of the utterances.

    They are taken in the order of their names' hashes: at random, but always the same.

    Args:
        sessions: Session of each utterance.
        fraction: Share; 0 chooses none.

    Raises:
        InputError: No session would be left for training.
    """
    counts = Counter(sessions)
    wanted = fraction * counts.total()
    chosen: set[str] = set()
    for session in sorted(counts, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if sum(counts[name] for name in chosen) >= wanted:
            break
        chosen.add(session)
    if chosen and len(chosen) == len(counts):
        raise InputError(
            f"{len(counts)} sessions cannot be divided into training and a validation set of"
            f" {fraction:g}; add sessions, or give a smaller --valid_fraction (0: no set)"
        )
    return chosen


def read_places(data_dir: str | Path) -> dict[str, Segment]:
    """Read where the utterances of a data directory lie: utt2session, or else segments.

    Raises:
        InputError: Neither is there, or a line of it cannot be read.
    """
    folder = Path(data_dir)
    name = next((name for name in (UTT2SESSION, "segments") if (folder / name).is_file()), None)
    if name is None:
        raise InputError(
            f"{folder}: has neither {UTT2SESSION} nor segments, so that nothing tells which"
            " session its utterances are of; write <utterance> <session> <start> <end>"
        )
    return _parse_places(folder / name)


def _parse_places(path: Path) -> dict[str, Segment]:
    places = {}
    for key, value in read_table(path).items():
        try:
            places[key] = parse_segment(value)
        except ValueError as error:
            raise InputError(f"{path}: {key}: {error}; correct the line") from error
    return places


def read_labelled(data_dir: str | Path, text: str | Path) -> dict[str, LabelledAudio]:
    """Join the utterances of a data directory with hypotheses.

    Args:
        data_dir: wav.scp, utt2spk, segments with both times or utt2dur, utt2session.
        text: Hypotheses, such as decoding writes; lines of other utterances are not looked at.

    Raises:
        InputError: A table is missing or damaged, or a duration is not known.
    """
    folder = Path(data_dir)
    hypotheses = read_table(text, require_value=False)
    places = read_places(folder)
    durations = _durations(folder)
    labelled = {}
    for key in read_table(folder / "utt2spk"):
        for table, name in ((places, UTT2SESSION), (durations, "utt2dur")):
            if key not in table:
                raise InputError(f"{folder}: {key}: has no line in {name}; prepare the data again")
        words = hypotheses.get(key)
        sentence = None if words is None else " ".join(words.split())
        labelled[key] = LabelledAudio(sentence, durations[key], places[key])
    return labelled


def _durations(folder: Path) -> dict[str, float]:
    if (folder / "segments").is_file():
        places = _parse_places(folder / "segments")
        durations = {key: place.end_s - place.start_s for key, place in places.items()}
    elif (folder / "utt2dur").is_file():
        durations = {}
        for key, value in read_table(folder / "utt2dur").items():
            try:
                durations[key] = float(value)
            except ValueError:
                raise InputError(f"{folder / 'utt2dur'}: {key}: {value} is no number") from None
    else:
        raise InputError(f"{folder}: has neither segments nor utt2dur; add one of them")
    bad = next((key for key, duration_s in durations.items() if not duration_s > 0), None)
    if bad is not None:
        raise InputError(f"{folder}: {bad}: has no duration above 0 s; write its end in segments")
    return durations


def write_subset(
    source: str | Path, target: str | Path, texts: Mapping[str, str], dropped: Mapping[str, str]
) -> None:
    """Write a data directory with some utterances of another one, and new texts.

    Args:
        source: Data directory without text.
        target: Folder to write; wav.scp comes last, so that a run cut off leaves none.
        texts: Of the utterances that go along.
        dropped: Id to reason, for the list `dropped_utterances`; may be empty.
    """
    source, target = Path(source), Path(target)
    for name in ("wav.scp", *UTTERANCE_TABLES, DROPPED_UTTERANCES):
        (target / name).unlink(missing_ok=True)
    tables = {
        name: {key: value for key, value in read_table(source / name).items() if key in texts}
        for name in UTTERANCE_TABLES
        if (source / name).is_file()
    }
    for name, table in tables.items():
        write_table(target / name, table)
    write_table(target / "spk2utt", make_spk2utt(tables["utt2spk"]))
    write_table(target / "text", texts)
    if dropped:
        write_table(target / DROPPED_UTTERANCES, dropped)
    audio = read_table(source / "wav.scp")
    used = set(texts)
    if "segments" in tables:
        used = {parse_segment(value).recording for value in tables["segments"].values()}
    write_table(target / "wav.scp", {key: audio[key] for key in audio if key in used})
