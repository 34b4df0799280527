"""Files of VoxPopuli and their download, in the layout of facebookresearch/voxpopuli's scripts.

raw_audios/original/<year>/<session>_original.ogg       sessions, in all languages
raw_audios/<language>/<year>/<session>_<language>.ogg   sessions with interpreters
transcribed_data/<language>/asr_<language>.tsv.gz       annotation of the sessions
transcribed_data/<language>/asr_<split>.tsv             utterances, by get_asr_data
transcribed_data/<language>/<year>/<id>.ogg             audio of utterances, by get_asr_data
unlabelled_data/unlabelled_v2.tsv.gz                    times of unlabelled segments
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.data.files.archive import unpack
from espnet_medusa.recipes.download import download

BASE_URL = "https://dl.fbaipublicfiles.com/voxpopuli"
TRANSCRIBED_LANGUAGES = (
    *("cs", "de", "en", "es", "et", "fi", "fr", "hr"),
    *("hu", "it", "lt", "nl", "pl", "ro", "sk", "sl"),
)
SPLITS = ("train", "dev", "test")
ORIGINAL = "original"
SEGMENT_TABLE = "unlabelled_v2.tsv.gz"


@dataclass(frozen=True)
class Corpus:
    """A copy of VoxPopuli."""

    root: Path  # folder of raw_audios, transcribed_data, unlabelled_data

    def session_audio(self, session: str, channel: str) -> Path:
        """Return the audio of a whole session; the channel is `original` or a language."""
        return self.year_folder(channel, session[:4]) / f"{session}_{channel}.ogg"

    def year_folder(self, channel: str, year: str) -> Path:
        """Return the folder of a year's sessions."""
        return self.root / "raw_audios" / channel / year

    def prepared(self, language: str) -> Path:
        """Return the output folder of get_asr_data."""
        return self.root / "transcribed_data" / language

    def is_prepared(self, language: str) -> bool:
        """Return whether get_asr_data is complete."""
        return all((self.prepared(language) / f"asr_{split}.tsv").is_file() for split in SPLITS)

    def annotation(self, language: str) -> Path | None:
        """Return the annotation of a language, in the scripts' or the server's layout."""
        name = f"asr_{language}.tsv.gz"
        return _first_file([self.prepared(language) / name, self._annotations() / "asr" / name])

    def segment_table(self) -> Path | None:
        """Return the official segmentation of unlabelled audio."""
        places = [self.root / "unlabelled_data", self._annotations()]
        return _first_file(place / SEGMENT_TABLE for place in places)

    def _annotations(self) -> Path:
        return self.root / "annotations"


def _first_file(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def fetch_annotation(corpus: Corpus, language: str, base_url: str = BASE_URL) -> Path:
    """Download the annotation of a language unless it exists.

    Raises:
        InputError, OSError: As `download`.
    """
    name = f"asr_{language}.tsv.gz"
    existing = corpus.annotation(language)
    return existing or download(
        f"{base_url}/annotations/asr/{name}", corpus.prepared(language) / name
    )


def fetch_segment_table(corpus: Corpus, base_url: str = BASE_URL) -> Path:
    """Download the official segmentation unless it exists.

    Raises:
        InputError, OSError: As `download`.
    """
    existing = corpus.segment_table()
    path = corpus.root / "unlabelled_data" / SEGMENT_TABLE
    return existing or download(f"{base_url}/annotations/{SEGMENT_TABLE}", path)


def fetch_audio(
    corpus: Corpus, channel: str, years: Iterable[str], base_url: str = BASE_URL
) -> None:
    """Download the sessions of some years, each unless its folder exists.

    Raises:
        InputError, OSError: As `download` and `unpack`.
    """
    folder = corpus.root / "raw_audios"
    for year in years:
        if not corpus.year_folder(channel, year).is_dir():
            name = f"{channel}_{year}.tar"
            archive = download(f"{base_url}/audios/{name}", folder / name)
            unpack(archive, folder)
            archive.unlink()  # a year of audio is large
