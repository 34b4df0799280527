"""Write transcripts into a folder, which an interrupted call resumes from."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.inference.journal import Journal, write_summary
from espnet_medusa.kaldi.table import write_table
from espnet_medusa.transcription.formats import FORMATS, Transcript

TEXT = "text"


class OutputFolder:
    """A folder with a file for each recording and format, tables of all, and the journal.

    Args:
        formats: Names in ``FORMATS``.
        made_with: Description of model and options; results of a different one are discarded.
        overwrite: Whether all earlier results are discarded.
    """

    def __init__(
        self, folder: Path, formats: Sequence[str], made_with: dict, overwrite: bool = False
    ):
        self.folder, self.formats = folder, tuple(formats)
        self.journal = Journal(folder, made_with)
        if overwrite:
            self.journal.decoded.clear()

    def write(self, transcript: Transcript) -> None:
        """Write the files of one recording."""
        for name in self.formats:
            path = self.folder / f"{transcript.recording.name}.{name}"
            write_atomically(path, FORMATS[name](transcript))

    def write_tables(self, transcripts: Iterable[Transcript]) -> None:
        """Write the Kaldi table ``text`` and the files of ``write_summary`` for all recordings."""
        done, failed = {}, {}
        for transcript in transcripts:
            if transcript.error is None:
                done[transcript.recording.id] = transcript
            else:
                failed[transcript.recording.id] = transcript.error
        write_table(self.folder / TEXT, {key: done[key].line for key in done})
        write_summary(
            self.folder,
            {key: done[key].statistics for key in done},
            {key: failed[key] for key in sorted(failed)},
            {key: done[key].segments for key in done},
            {key: str(done[key].recording.path.resolve()) for key in done},
        )
