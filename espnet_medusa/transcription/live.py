"""Transcribe a stream, show its text, and write the files of a transcription."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from espnet_medusa.data.audio.source import AudioError
from espnet_medusa.inference.live.live_transcriber import LiveTranscriber
from espnet_medusa.inference.live.live_words import LiveUpdate
from espnet_medusa.inference.longform.segment import Segment, clamp_segments
from espnet_medusa.transcription.formats import Transcript
from espnet_medusa.transcription.live_display import Show
from espnet_medusa.transcription.live_sources import Pieces
from espnet_medusa.transcription.recordings import Recording
from espnet_medusa.transcription.transcribe import OutputFolder

UNFINISHED = ".live.txt"  # suffix of the text so far
NAME = "live"  # of a recording that is not a file


@dataclass
class LiveResult:
    """The updates of a stream so far."""

    segments: list[Segment] = field(default_factory=list)
    updates: int = 0
    error: str | None = None  # why the audio ended early


def free_name(folder: Path) -> str:
    """Return a name for a recording of which the folder has no files."""
    number = 1
    while True:
        name = NAME if number == 1 else f"{NAME}_{number}"
        if not any(path.name.startswith(f"{name}.") for path in folder.glob(f"{name}.*")):
            return name
        number += 1


@contextmanager
def stop_at_interrupt(stopped: threading.Event) -> Iterator[None]:
    """Let the first Ctrl-C set ``stopped``; the second one interrupts."""

    def stop(*_: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def transcribe_stream(
    live: LiveTranscriber, pieces: Pieces, show: Show, unfinished: Path
) -> LiveResult:
    """Transcribe pieces to their end; each confirmed word is written to ``unfinished`` at once."""
    result = LiveResult()
    with unfinished.open("w", encoding="utf-8", errors="replace") as stream:

        def take(update: LiveUpdate) -> None:
            result.updates += 1
            result.segments += update.segments
            stream.write("".join(word.text for word in update.confirmed))
            stream.flush()
            show(update)

        try:
            for piece in pieces:
                live.add(piece)
                if (update := live.update()) is not None:
                    take(update)
        except AudioError as error:
            result.error = str(error)
        take(live.finish())
    return result


def write_live(
    folder: OutputFolder,
    recording: Recording,
    live: LiveTranscriber,
    result: LiveResult,
    with_words: bool,
) -> Transcript:
    """Write the files of a stream, and remove its unfinished text."""
    segments = clamp_segments(result.segments, live.audio.end_s)
    segments = tuple(one if with_words else replace(one, words=()) for one in segments)
    text = "".join(one.text for one in segments)
    live.statistics.words = len(text.split())
    transcript = Transcript(recording, text, live.language, live.statistics, segments=segments)
    folder.write(transcript)
    # Without a file, there is no path for wav.scp.
    is_file = recording.path.is_file()
    folder.write_tables([transcript if is_file else replace(transcript, segments=None)])
    unfinished_path(folder, recording).unlink()
    return transcript


def unfinished_path(folder: OutputFolder, recording: Recording) -> Path:
    path = folder.folder / f"{recording.name}{UNFINISHED}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
