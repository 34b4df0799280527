"""Divide utterances into tasks by their lengths."""

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from espnet_medusa.audio.reader import AudioError, probe_audio
from espnet_medusa.audio.source import is_pipe
from espnet_medusa.inference.batches import FRAMES_PER_S, make_batches
from espnet_medusa.kaldi.table import scan_table
from espnet_medusa.whisper.log_mel import SAMPLE_RATE_HZ

SAMPLES = "utt2num_samples"
UNKNOWN_FRAMES = 30 * FRAMES_PER_S  # Whisper's window
READERS = 16  # threads that read headers, which is I/O
TASK_FRAMES = 12000  # two minutes of audio take seconds; the overhead of a task is milliseconds
TASKS_PER_WORKER = 4  # at least, or all workers wait for the one with the last task


def read_lengths(keys: Iterable[str], entries: Mapping[str, str], wav_scp: Path) -> dict[str, int]:
    """Read the approximate number of 10 ms frames of each utterance.

    The source is ``utt2num_samples`` next to wav.scp, which recipes write (at 16 kHz), or else
    the header of the file. Commands and unreadable files count as one Whisper window.

    Args:
        keys: Utterance ids.
        entries: Utterance id to the value in wav.scp.
    """
    table = wav_scp.parent / SAMPLES
    samples = scan_table(table).entries if table.is_file() else {}
    lengths, unlisted = {}, []
    for key in keys:
        lengths[key] = UNKNOWN_FRAMES
        if samples.get(key, "").isdecimal():
            lengths[key] = int(samples[key]) * FRAMES_PER_S // SAMPLE_RATE_HZ
        else:
            unlisted.append(key)
    with ThreadPoolExecutor(READERS) as readers:
        frames = readers.map(_header_frames, (entries[key] for key in unlisted))
        return lengths | dict(zip(unlisted, frames, strict=True))


def _header_frames(entry: str) -> int:
    if is_pipe(entry):  # it runs once, on the worker
        return UNKNOWN_FRAMES
    try:
        duration_s = probe_audio(entry).duration_s
    except AudioError:  # the worker reports it
        return UNKNOWN_FRAMES
    return UNKNOWN_FRAMES if duration_s is None else round(duration_s * FRAMES_PER_S)


def plan_tasks(
    lengths: Mapping[str, int], batch_size: int, max_batch_frames: int | None, workers: int
) -> list[list[str]]:
    """Divide utterances into tasks of similar lengths, the longest first.

    A task consists of consecutive batches, the same that one process would make of all utterances.

    Args:
        lengths: Utterance id to frames of 10 ms.
        batch_size: Most utterances that are decoded together.
        max_batch_frames: Most frames of a batch; None: no limit.

    Returns:
        Ids of each task. A task has at most ``TASK_FRAMES`` padded frames, or is one batch. Tasks
        are smaller if there would be fewer than ``TASKS_PER_WORKER`` per worker.
    """
    keys, frames = [*lengths], [max(length, 1) for length in lengths.values()]
    batches = make_batches(frames, batch_size, max_batch_frames)
    sizes = [len(batch) * frames[batch[0]] for batch in batches]
    most = min(TASK_FRAMES, math.ceil(sum(sizes) / (TASKS_PER_WORKER * workers)))
    tasks: list[list[str]] = []
    room = 0
    for batch, size in zip(batches, sizes, strict=True):
        if size > room:
            tasks.append([])
            room = most
        tasks[-1] += [keys[index] for index in batch]
        room -= size
    return tasks
