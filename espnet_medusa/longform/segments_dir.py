"""Segments of recordings as a Kaldi data directory, which recipes read."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.kaldi.data_dir import make_spk2utt
from espnet_medusa.kaldi.table import write_table
from espnet_medusa.longform.ctm import ctm_lines
from espnet_medusa.longform.segment import Segment

SEGMENTS = "segments"  # the folder, beside texts of whole recordings
TABLES = ("wav.scp", "segments", "text", "utt2spk", "spk2utt")
CTM = "ctm"


def write_segments_dir(
    folder: Path, entries: Mapping[str, str], segments: Mapping[str, Sequence[Segment]]
) -> None:
    """Write wav.scp, segments, text, utt2spk, spk2utt and, where words have times, ctm.

    A recording is its own speaker; ids have the start in hundredths of a second.

    Args:
        folder: Where to; without recordings what is there of an earlier call goes.
        entries: Recording to its value in wav.scp; may have others.
        segments: Recording to its segments.
    """
    places, texts, speakers = {}, {}, {}
    for name, found in segments.items():
        for segment in found:
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
    """Write the tables of a directory, or remove what is there where no recording is among them.

    Args:
        folder: Where to.
        tables: Those of ``TABLES``.
        ctm: Lines of words; empty: there are none.
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
