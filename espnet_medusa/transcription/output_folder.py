"""Where transcripts go: a file for each recording, tables of all; and which are there already."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.inference.journal import FAILED, Decoded, Hypothesis, Journal
from espnet_medusa.kaldi.table import write_table
from espnet_medusa.longform.segments_dir import SEGMENTS, write_segments_dir
from espnet_medusa.search.statistics import write_statistics
from espnet_medusa.transcription.formats import FORMATS
from espnet_medusa.transcription.recordings import Recording
from espnet_medusa.transcription.transcript import Transcript, output_path

TEXT, STATISTICS = "text", "statistics.json"


class OutputFolder:
    """Writes transcripts as they come; what an earlier call has written need not be made again.

    Args:
        folder: To write to.
        formats: Names in ``FORMATS``.
        made_with: Describes model and options; results of other ones are not taken over.
        overwrite: Whether nothing is taken over at all.
    """

    def __init__(
        self, folder: Path, formats: Sequence[str], made_with: dict, overwrite: bool = False
    ):
        self.folder, self.formats = folder, tuple(formats)
        self.journal = Journal(folder, made_with)
        if overwrite:
            self.journal.decoded.clear()

    def find(self, recordings: Iterable[Recording]) -> list[Transcript]:
        """Transcripts of an earlier call; of files that have changed since there are none."""
        decoded = self.journal.decoded
        found = [(recording, decoded.get(_key(recording))) for recording in recordings]
        return [
            Transcript(
                recording,
                done.nbest[0].text,
                done.language,
                done.statistics,
                segments=done.segments,
            )
            for recording, done in found
            if done is not None
        ]

    def add(self, transcript: Transcript) -> None:
        """Write a transcript; one without a text is not taken over later."""
        if transcript.error is not None:
            return
        key = _key(transcript.recording)
        hypothesis = Hypothesis(transcript.text, [], [], "")
        decoded = Decoded(
            key, [hypothesis], transcript.statistics, transcript.language, transcript.segments
        )
        if key not in self.journal.decoded:
            self.journal.add(decoded)
        for output_format in self.formats:
            path = output_path(self.folder, transcript.recording, output_format)
            write_atomically(path, FORMATS[output_format](transcript))

    def finish(self, transcripts: Iterable[Transcript]) -> None:
        """Write ``text``, ``statistics.json`` and ``failed_utterances`` of all recordings.

        Where there are segments, ``segments`` is a Kaldi directory of them.
        """
        by_id = {transcript.recording.id: transcript for transcript in transcripts}
        done = {key: one for key, one in by_id.items() if one.error is None}
        failed = {key: one.error for key, one in by_id.items() if one.error is not None}
        write_table(self.folder / TEXT, {key: one.line for key, one in done.items()})
        timed = {key: one for key, one in done.items() if one.segments is not None}
        write_segments_dir(
            self.folder / SEGMENTS,
            {key: str(one.recording.path.resolve()) for key, one in timed.items()},
            {key: one.segments for key, one in timed.items()},
        )
        write_statistics(
            self.folder / STATISTICS, {key: one.statistics for key, one in done.items()}
        )
        write_table(self.folder / FAILED, failed)


def _key(recording: Recording) -> str:
    """Tells a file from others, and from what it was before it changed."""
    path = recording.path.resolve()
    return f"{path} {path.stat().st_mtime_ns if path.exists() else ''}"
