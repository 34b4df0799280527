"""How long utterances are, as far as it can be told without decoding them."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from espnet_medusa.audio.reader import AudioError, probe_audio
from espnet_medusa.audio.source import is_pipe
from espnet_medusa.inference.batches import FRAMES_PER_S
from espnet_medusa.kaldi.table import scan_table
from espnet_medusa.whisper.log_mel import SAMPLE_RATE_HZ

SAMPLES = "utt2num_samples"
UNKNOWN_FRAMES = 30 * FRAMES_PER_S  # Whisper's window
READERS = 16  # headers are waited for, not computed


def read_lengths(keys: Iterable[str], entries: Mapping[str, str], wav_scp: Path) -> dict[str, int]:
    """Frames of 10 ms of each utterance: good enough to tell long from short.

    They stand in ``utt2num_samples`` beside wav.scp, which recipes write (at 16 kHz), or else in
    the header of the file. What nothing tells of, a command or a file that cannot be read, counts
    as Whisper's window.

    Args:
        keys: Utterance ids.
        entries: Utterance id to the value in wav.scp.
        wav_scp: The file.
    """
    table = wav_scp.parent / SAMPLES
    samples = scan_table(table).entries if table.is_file() else {}
    lengths = {
        key: int(samples[key]) * FRAMES_PER_S // SAMPLE_RATE_HZ if _is_told(samples, key) else None
        for key in keys
    }
    unknown = [key for key, length in lengths.items() if length is None]
    with ThreadPoolExecutor(READERS) as readers:
        found = readers.map(_header_frames, (entries[key] for key in unknown))
        return lengths | dict(zip(unknown, found, strict=True))


def _is_told(samples: Mapping[str, str], key: str) -> bool:
    return samples.get(key, "").isdecimal()


def _header_frames(entry: str) -> int:
    if is_pipe(entry):  # which would run twice
        return UNKNOWN_FRAMES
    try:
        duration_s = probe_audio(entry).duration_s
    except AudioError:  # the worker that gets it says what is wrong
        return UNKNOWN_FRAMES
    return UNKNOWN_FRAMES if duration_s is None else round(duration_s * FRAMES_PER_S)
