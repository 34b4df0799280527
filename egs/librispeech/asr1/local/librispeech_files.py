"""Files of LibriSpeech (openslr 12, 31) and LibriSpeech-PC (openslr 145), and their download."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.archive import unpack
from espnet_medusa.recipes.download import download

OPENSLR = "https://www.openslr.org/resources"
CORPUS = "LibriSpeech"
PC_ARCHIVE = "manifests.tar.gz"
PC_CHECKSUM = "sha256:96d4eae2222b29b66437a21959252419bcd4762e5042e71e023790171054d1c0"


@dataclass(frozen=True)
class Subset:
    """A subset of the corpus."""

    name: str  # name of its folder; its archive is `<name>.tar.gz`
    checksum: str  # checksum of the archive, from the publisher's md5sum.txt
    n_utterances: int  # published number of utterances
    resource: int = 12  # number of its resource at openslr; 31 is mini_librispeech
    # Larger subset that contains it, whose manifest has its transcripts; or empty.
    part_of: str = ""

    @property
    def set_name(self) -> str:
        """Name of its data directory."""
        return self.name.replace("-", "_")

    @property
    def is_test(self) -> bool:
        """Whether it is a test set."""
        return self.name.startswith("test-")

    @property
    def is_train(self) -> bool:
        """Whether it is a training set."""
        return self.name.startswith("train-")

    @property
    def manifest_name(self) -> str:
        """Name of the subset whose LibriSpeech-PC manifest has its transcripts."""
        return self.part_of or self.name


@dataclass(frozen=True)
class Part:
    """The subsets to train and to validate on of one `--part`."""

    train: tuple[str, ...]
    valid: tuple[str, ...] = ("dev-clean", "dev-other")


SUBSETS = {
    subset.name: subset
    for subset in (
        Subset(
            "train-clean-5", "md5:5df7d4e78065366204ca6845bb08f490", 1519, 31, "train-clean-100"
        ),
        Subset("train-clean-100", "md5:2a93770f6d5c6c964bc36631d331a522", 28539),
        Subset("train-clean-360", "md5:c0e676e450a7ff2f54aeade5171606fa", 104014),
        Subset("train-other-500", "md5:d1a0fd59409feb2c614ce4d30c387708", 148688),
        Subset("dev-clean-2", "md5:6d7ab67ac6a1d2c993d050e16d61080d", 1089, 31, "dev-clean"),
        Subset("dev-clean", "md5:42e2234ba48799c1f50f24a7926300a1", 2703),
        Subset("dev-other", "md5:c8d0bcc9cca99d4f8b62fcc847357931", 2864),
        Subset("test-clean", "md5:32fa31d27d2e1cad72775fee3f4849a9", 2620),
        Subset("test-other", "md5:fb5a50374b501bb3bac4815ee91d3135", 2939),
    )
}
PARTS = {
    "5": Part(("train-clean-5",), ("dev-clean-2",)),
    "100": Part(("train-clean-100",)),
    "460": Part(("train-clean-100", "train-clean-360")),
    "960": Part(("train-clean-100", "train-clean-360", "train-other-500")),
}
TEST_SETS = {subset.set_name: name for name, subset in SUBSETS.items() if subset.is_test}


def find_subset(folders: Sequence[Path], name: str) -> Path:
    """Find `<name>` in folders: the subset itself, LibriSpeech or its parent; the first wins.

    Raises:
        InputError: No folder has it.
    """
    for folder in folders:
        places = [folder / name, folder / CORPUS / name]
        if folder.resolve().name == name:
            places.append(folder)
        for place in places:
            # The archive may have been unpacked into a folder of the subset's name.
            if place.is_dir() and not (place / CORPUS).is_dir():
                return place
    raise InputError(
        f"{', '.join(map(str, folders))}: has neither {name} nor {CORPUS}/{name}; unpack"
        f" {name}.tar.gz there, add a folder to --librispeech, choose other sets (--part,"
        " --valid_speakers, --test_sets, --subsets), or omit --librispeech to download it"
    )


def fetch_subset(folder: Path, subset: Subset, openslr: str = OPENSLR) -> Path:
    """Download and unpack a subset into a folder, unless it exists; returns its folder.

    The archive may be removed afterwards: an unpacked subset is not downloaded again.

    Raises:
        InputError, OSError: As `download` and `unpack`.
    """
    place = folder / CORPUS / subset.name
    if not place.is_dir():
        archive = f"{subset.name}.tar.gz"
        address = f"{openslr}/{subset.resource}/{archive}"
        unpack(download(address, folder / archive, subset.checksum), folder)
    return find_subset([folder], subset.name)


def find_manifest(folder: Path, name: str) -> Path | None:
    """Find the LibriSpeech-PC manifest of a subset, `<name>.json`."""
    places = (folder, folder / "manifest", folder / "manifests")
    return next((p / f"{name}.json" for p in places if (p / f"{name}.json").is_file()), None)


def require_manifest(folder: Path, name: str) -> Path:
    """Find the manifest of a subset.

    Raises:
        InputError: The folder has none.
    """
    manifest = find_manifest(folder, name)
    if manifest is None:
        raise InputError(
            f"{folder}: has no {name}.json of LibriSpeech-PC; unpack {PC_ARCHIVE} there, or give"
            " --librispeech_pc false"
        )
    return manifest


def fetch_manifest(
    folder: Path, name: str, openslr: str = OPENSLR, checksum: str = PC_CHECKSUM
) -> Path:
    """Download and unpack the manifests into a folder, unless the subset's exists.

    Raises:
        InputError, OSError: As `download` and `unpack`.
    """
    if find_manifest(folder, name) is None:
        archive = folder / PC_ARCHIVE
        unpack(download(f"{openslr}/145/{PC_ARCHIVE}", archive, checksum), folder)
    return require_manifest(folder, name)
