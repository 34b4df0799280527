"""What a recording's header says, read once."""

from __future__ import annotations

from dataclasses import dataclass

from espnet_medusa.audio.reader import AudioInfo, probe_audio
from espnet_medusa.audio.source import AudioError
from espnet_medusa.transcription.recordings import Recording


@dataclass(frozen=True)
class ProbedRecording:
    """A recording and its header.

    Attributes:
        recording: Which one.
        header: What it says; why it says nothing.
    """

    recording: Recording
    header: AudioInfo | AudioError

    @property
    def duration_s(self) -> float | None:
        """What the header says; None where it says nothing."""
        return None if isinstance(self.header, AudioError) else self.header.duration_s


def probe_recording(recording: Recording) -> ProbedRecording:
    """Read the header of a file, which may not be there."""
    try:
        return ProbedRecording(recording, probe_audio(str(recording.path)))
    except AudioError as error:
        return ProbedRecording(recording, error)
