"""The decodings of experiments: which there are, and plain decoding among them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.kaldi.table import read_results
from espnet_medusa.search.statistics import DecodingStatistics, read_statistics

MODEL_MARK = "_asr_model_"


@dataclass(frozen=True)
class Decoding:
    """One test set decoded in one way.

    Attributes:
        exp_dir: Experiment folder.
        tag: Inference tag, the folder below it.
        test_set: Name of the test set, the folder below that.
        utterances: Statistics by id.
        texts: Hypotheses by id.
    """

    exp_dir: Path
    tag: str
    test_set: str
    utterances: dict[str, DecodingStatistics]
    texts: dict[str, str]

    @property
    def folder(self) -> Path:
        """Where its results lie."""
        return self.exp_dir / self.tag / self.test_set

    @property
    def name(self) -> str:
        """Short name: experiment and decoding configuration."""
        experiment = self.exp_dir.name.removeprefix("asr_")
        return f"{experiment} {self.tag.split(MODEL_MARK)[0]}"

    @property
    def total(self) -> DecodingStatistics:
        """Sum over the utterances."""
        return sum(self.utterances.values(), DecodingStatistics())


def find_decodings(exp_dirs: Iterable[Path]) -> list[Decoding]:
    """All decoded test sets below the experiments that have statistics.

    Raises:
        ValueError: A file of them is malformed.
    """
    found = []
    for exp_dir in exp_dirs:
        for path in decoded_files(exp_dir, "statistics.json"):
            texts, place = read_results(path.parent / "text"), tag_and_set(exp_dir, path)
            found.append(Decoding(exp_dir, *place, read_statistics(path), texts))
    return found


def decoded_files(exp_dir: Path, name: str) -> list[Path]:
    """The files of this name of all decoded test sets of an experiment."""
    # --eval_valid_set decodes org/<set>.
    return sorted([*exp_dir.glob(f"*/*/{name}"), *exp_dir.glob(f"*/org/*/{name}")])


def tag_and_set(exp_dir: Path, path: Path) -> tuple[str, str]:
    """Inference tag and test set of one of ``decoded_files``."""
    tag, *test_set = path.parent.relative_to(exp_dir).parts
    return tag, "/".join(test_set)


def is_configuration(decoding: Decoding, wanted: Path) -> bool:
    """Whether a decoding is that of `EXP_DIR/INFERENCE_TAG`; the model's part may be left out."""
    tag = decoding.tag
    return decoding.exp_dir == wanted.parent and wanted.name in (tag, tag.split(MODEL_MARK)[0])


def find_plain(
    decodings: Sequence[Decoding], wanted: Path | None, test_set: str
) -> Decoding | None:
    """Plain decoding of a test set, None when none was asked for.

    Raises:
        ValueError: It was asked for and is not there.
    """
    if wanted is None:
        return None
    same = [item for item in decodings if item.test_set == test_set]
    exact = [item for item in same if is_configuration(item, wanted)]
    # Options of the command line are part of the tag.
    longer = [
        item
        for item in same
        if item.exp_dir == wanted.parent and item.tag.startswith(f"{wanted.name}_")
    ]
    if exact or len(longer) == 1:
        return (exact or longer)[0]
    known = ", ".join(f"{item.exp_dir / item.tag}" for item in same)
    raise ValueError(f"--plain {wanted}: {test_set} was not decoded so; there is {known}")


def find_plains(decodings: Sequence[Decoding], wanted: Path | None) -> dict[str, Decoding | None]:
    """Plain decoding by test set, None where a set was not decoded so, or it was not asked for.

    Raises:
        ValueError: It was asked for, and no test set has it.
    """
    found: dict[str, Decoding | None] = {}
    problem = None
    for test_set in sorted({item.test_set for item in decodings}):
        try:
            found[test_set] = find_plain(decodings, wanted, test_set)
        except ValueError as error:
            found[test_set], problem = None, error
    if problem is not None and not any(found.values()):
        raise problem
    return found


def same_texts(decoding: Decoding, plain: Decoding) -> tuple[int, int]:
    """Utterances with plain decoding's text, and utterances of both."""
    both = decoding.texts.keys() & plain.texts.keys()
    return sum(decoding.texts[key] == plain.texts[key] for key in both), len(both)
