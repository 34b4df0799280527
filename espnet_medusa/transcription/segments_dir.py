"""Segments of recordings as a Kaldi data directory, which recipes read."""

from collections.abc import Iterable
from pathlib import Path

from espnet_medusa.kaldi.data_dir import make_spk2utt
from espnet_medusa.kaldi.table import write_table
from espnet_medusa.transcription.transcript import Transcript


def write_segments_dir(folder: Path, transcripts: Iterable[Transcript]) -> None:
    """Write wav.scp, segments, text, utt2spk and spk2utt; nothing where there are no segments.

    A recording is its own speaker; ids have the start in hundredths of a second.
    """
    timed = [one for one in transcripts if one.segments is not None]
    if not timed:
        return
    folder.mkdir(parents=True, exist_ok=True)
    segments, texts, speakers = {}, {}, {}
    for transcript in timed:
        name = transcript.recording.id
        for segment in transcript.segments:
            text = " ".join(segment.text.split())
            if not text or segment.end_s <= segment.start_s:
                continue
            key = f"{name}_{round(segment.start_s * 100):07d}_{round(segment.end_s * 100):07d}"
            segments[key] = f"{name} {segment.start_s:.2f} {segment.end_s:.2f}"
            texts[key], speakers[key] = text, name
    recordings = {one.recording.id: str(one.recording.path.resolve()) for one in timed}
    write_table(folder / "wav.scp", recordings)
    write_table(folder / "segments", segments)
    write_table(folder / "text", texts)
    write_table(folder / "utt2spk", speakers)
    write_table(folder / "spk2utt", make_spk2utt(speakers))
