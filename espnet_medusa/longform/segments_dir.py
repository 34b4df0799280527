"""Segments of recordings as a Kaldi data directory."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.kaldi.data_dir import make_spk2utt
from espnet_medusa.kaldi.table import write_table
from espnet_medusa.longform.segment import Segment

SEGMENTS = "segments"  # name of the folder
TABLES = ("wav.scp", "segments", "text", "utt2spk", "spk2utt")
CTM = "ctm"
CHANNEL = 1


def ctm_lines(recording: str, segments: Iterable[Segment]) -> str:
    """Return lines of NIST's ctm: recording, channel, start, duration, word, probability."""
    return "".join(
        f"{recording} {CHANNEL} {word.start_s:.2f} {word.end_s - word.start_s:.2f} "
        f"{word.text.strip()} {word.probability:.2f}\n"
        for segment in segments
        for word in segment.words
        if word.text.strip()
    )


def write_segments_dir(
    folder: Path, entries: Mapping[str, str], segments: Mapping[str, Sequence[Segment]]
) -> None:
    """Write wav.scp, segments, text, utt2spk, spk2utt and, of word times, ctm.

    Each recording is a speaker; ids of segments have start and end in hundredths of a second.

    Args:
        folder: To write; files of an earlier call are removed if there are no recordings.
        entries: Recording to its value in wav.scp; may have others.
    """
    places, texts, speakers = {}, {}, {}
    for name in segments:
        for segment in segments[name]:
            text = " ".join(segment.text.split())
            if not text or segment.end_s <= segment.start_s:
                continue
            key = f"{name}_{round(segment.start_s * 100):07d}_{round(segment.end_s * 100):07d}"
            places[key] = f"{name} {segment.start_s:.2f} {segment.end_s:.2f}"
            texts[key], speakers[key] = text, name
    recordings = {name: entries[name] for name in segments}
    tables = (recordings, places, texts, speakers, make_spk2utt(speakers))
    words = "".join(ctm_lines(name, segments[name]) for name in sorted(segments))
    put_segments_dir(folder, dict(zip(TABLES, tables, strict=True)), words)


def put_segments_dir(folder: Path, tables: Mapping[str, Mapping[str, str]], ctm: str) -> None:
    """Write the tables of a directory, or remove its files if there are no recordings.

    Args:
        tables: Those of ``TABLES``.
        ctm: Lines of words, or empty.
    """
    if not tables["wav.scp"]:
        for name in (*TABLES, CTM):
            (folder / name).unlink(missing_ok=True)
        return
    for name, table in tables.items():
        write_table(folder / name, table)
    if ctm:
        write_atomically(folder / CTM, ctm)
    else:
        (folder / CTM).unlink(missing_ok=True)
