"""A miniature of VoxPopuli in the corpus's layout, sessions of about ten seconds; its preparation.

Each utterance has its own pitch, by which tests recognize segments.
"""

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import prepare_voxpopuli
import soundfile
from refusals import exit_status

from espnet_medusa.data.kaldi.table import read_table

RATE_HZ = 16000
NOISE_LEVEL = 1e-3
GAP_S = 0.9
TEST_SESSION = "20190201-0900-PLENARY-15"
ANNOTATION_COLUMNS = (
    *("session_id", "id_", "original_text", "speaker_id", "start_time", "end_time"),
    *("normed_text", "split", "gender", "is_gold_transcript", "accent", "vad"),
)
PREPARED_COLUMNS = (
    *("id", "raw_text", "normalized_text", "speaker_id", "split", "gender"),
    *("is_gold_transcript", "accent"),
)
WORDS = ("madam", "president", "the", "commission", "has", "made", "this", "proposal", "in", "May")


@dataclass
class MiniatureUtterance:
    """One utterance, with the columns that the corpus has for it."""

    session: str
    start_s: float
    end_s: float
    pitch_hz: float
    columns: dict[str, str]

    @property
    def id(self) -> str:
        return f"{self.session}-{self.columns['id_']}"


def session_audio(sounds: Iterable[tuple[float, float, float]], duration_s: float) -> np.ndarray:
    """Sounds `(start_s, end_s, pitch_hz)` with two overtones in faint noise: float (N,)."""
    samples = NOISE_LEVEL * np.random.default_rng(0).standard_normal(round(duration_s * RATE_HZ))
    for start_s, end_s, pitch_hz in sounds:
        time_s = np.arange(round((end_s - start_s) * RATE_HZ)) / RATE_HZ
        sound = sum(0.2 / n * np.sin(2 * np.pi * n * pitch_hz * time_s) for n in (1, 2, 3))
        start = round(start_s * RATE_HZ)
        samples[start : start + len(sound)] += sound
    return samples


def write_ogg(path: Path, samples: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, RATE_HZ, format="OGG", subtype="VORBIS")
    return path


def plan_session(
    session: str, split: str, count: int, first_pitch_hz: float, language: str
) -> list[MiniatureUtterance]:
    """Utterances of 1 to 2 s, one after the other."""
    utterances = []
    start_s = 0.5
    for number in range(count):
        end_s = start_s + 1.0 + 0.25 * (number % 5)
        words = [WORDS[(number + i) % len(WORDS)] for i in range(2 + number % 4)]
        columns = {
            "session_id": session, "id_": f"{language}_{session[:8]}-09:10:11_{number}",
            "original_text": f"{' '.join(words).capitalize()}, {number + 1}.",
            "speaker_id": str(1000 + int(session[4:8]) + number % 2),
            "start_time": f"{start_s:.2f}", "end_time": f"{end_s:.2f}",
            "normed_text": " ".join(words).lower(), "split": split,
            "gender": "female", "is_gold_transcript": "True", "accent": "None",
            "vad": str([(start_s, start_s + 0.4), (start_s + 0.5, round(end_s, 3))]),
        }  # fmt: skip
        pitch_hz = first_pitch_hz + 40 * number
        utterances.append(MiniatureUtterance(session, start_s, round(end_s, 3), pitch_hz, columns))
        start_s = end_s + GAP_S
    return utterances


def write_session(
    root: Path, channel: str, session: str, utterances: Sequence[MiniatureUtterance]
) -> Path:
    sounds = [(u.start_s, u.end_s, u.pitch_hz) for u in utterances]
    path = root / "raw_audios" / channel / session[:4] / f"{session}_{channel}.ogg"
    return write_ogg(path, session_audio(sounds, utterances[-1].end_s + 0.5))


def write_table(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]], delimiter: str
) -> Path:
    """Write a table as the corpus has them: no quoting; compressed if its name ends in .gz."""
    data = "".join([delimiter.join(row) + "\n" for row in (columns, *rows)]).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_annotation(root: Path, language: str, utterances: Iterable[MiniatureUtterance]) -> Path:
    rows = [[u.columns[name] for name in ANNOTATION_COLUMNS] for u in utterances]
    path = root / "transcribed_data" / language / f"asr_{language}.tsv.gz"
    return write_table(path, ANNOTATION_COLUMNS, rows, "|")


def write_prepared(
    root: Path,
    language: str,
    utterances: Sequence[MiniatureUtterance],
    columns: Sequence[str] = PREPARED_COLUMNS,
) -> None:
    """Write what get_asr_data writes: the utterances cut out, and a table for each split."""
    folder = root / "transcribed_data" / language
    for u in utterances:
        samples = session_audio([(0, u.end_s - u.start_s, u.pitch_hz)], u.end_s - u.start_s)
        write_ogg(folder / u.session[:4] / f"{u.id}.ogg", samples)
    for split in ("train", "dev", "test"):
        rows = []
        for u in (u for u in utterances if u.columns["split"] == split):
            texts = {"raw_text": "original_text", "normalized_text": "normed_text"}
            known = u.columns | {"id": u.id} | {new: u.columns[old] for new, old in texts.items()}
            rows.append([known[name] for name in columns])
        write_table(folder / f"asr_{split}.tsv", columns, rows, "\t")


def write_segment_table(root: Path, rows: Iterable[tuple[str, str, str, str]]) -> Path:
    """Write unlabelled_data/unlabelled_v2.tsv.gz; rows: event, number, start, end."""
    path = root / "unlabelled_data" / "unlabelled_v2.tsv.gz"
    return write_table(path, ("event_id", "segment_no", "start", "end"), rows, "\t")


def plan_voxpopuli(language: str) -> list[MiniatureUtterance]:
    """Four training sessions, one for dev, one for test, each of 4 utterances in 10 s."""
    plan = [("train", f"2019011{n}-0900-PLENARY-{n}") for n in range(1, 5)]
    plan += [("dev", "20190121-0900-PLENARY-5"), ("test", TEST_SESSION)]
    return [
        utterance
        for index, (split, session) in enumerate(plan)
        for utterance in plan_session(session, split, 4, 200 + 200 * index, language)
    ]


def build_voxpopuli(
    root: Path, language: str = "de", prepared: bool = False, unlabelled_sessions: int = 0
) -> Path:
    """Build the corpus in ``root``.

    Args:
        prepared: Write what get_asr_data writes: utterances instead of original sessions.
        unlabelled_sessions: Sessions with the language's channel, without the test session.
            Every other one has official segments.
    """
    utterances = plan_voxpopuli(language)
    by_session: dict[str, list[MiniatureUtterance]] = {}
    for utterance in utterances:
        by_session.setdefault(utterance.session, []).append(utterance)
    write_annotation(root, language, utterances)
    if prepared:
        write_prepared(root, language, utterances)
    else:
        for session, spoken in by_session.items():
            write_session(root, "original", session, spoken)
    if unlabelled_sessions:
        names = [f"2019030{n % 9 + 1}-0900-PLENARY-{n}" for n in range(unlabelled_sessions)]
        spoken = {
            name: plan_session(name, "", 4, 150 + 30 * n, language) for n, name in enumerate(names)
        }
        test_session = utterances[-1].session
        spoken[test_session] = by_session[test_session]
        for session, parts in spoken.items():
            write_session(root, language, session, parts)
        rows = [
            (f"{session}_{language}", str(i), f"{u.start_s - 0.2:.2f}", f"{u.end_s:.2f}")
            for session in [*spoken][::2]
            for i, u in enumerate(spoken[session])
        ]
        write_segment_table(root, rows)
    return root


def run(*options: str) -> int:
    """Prepare `vox` of the current folder; return the exit status."""
    command = ["--lang", "de", "--voxpopuli", "vox", "--nj", "2", *options]
    return exit_status(prepare_voxpopuli.main, *command)


def tables(name: str) -> dict[str, dict[str, str]]:
    return {path.name: read_table(path) for path in Path("data", name).iterdir() if path.is_file()}


def problems(capsys) -> list[str]:
    return capsys.readouterr().out.splitlines()


def key_of(utterance: MiniatureUtterance) -> str:
    return f"{utterance.columns['speaker_id']}-{utterance.id}"


def damage_audio(path: Path, how: str) -> None:
    data = path.read_bytes()
    truncated = data[: len(data) * 2 // 3]
    contents = {"truncated": truncated, "empty": b"", "garbage": b"OggS is missing" * 20}
    path.unlink()
    if how != "missing":
        path.write_bytes(contents[how])
