"""Compares ways of decoding: calls, acceptance, speed and text beside plain decoding."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.kaldi.table import read_table
from espnet_medusa.report.tables.error_rates import parse_sum
from espnet_medusa.scoring.trn import read_trn
from espnet_medusa.search.statistics import DecodingStatistics, eta, read_statistics

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


@dataclass(frozen=True)
class ComparisonRow:
    """A line of the comparison; None where something was not measured.

    Attributes:
        wer: Word error rate, percent.
        eta: Decoder calls per word.
        acceptance_per_head: Share of each head's drafts that were written.
        decoder_speedup, speedup: Plain decoding's seconds over this one's, search only and all
            of it, over the utterances that both decoded.
        identical, compared: Utterances with plain decoding's text, and utterances of both.
    """

    configuration: str
    test_set: str
    wer: float | None
    eta: float | None
    tokens_per_call: float
    decoder_calls: int
    acceptance_per_head: list[float]
    decoder_rtf: float
    rtf: float
    decoder_speedup: float | None
    speedup: float | None
    identical: int | None
    compared: int | None


def find_decodings(exp_dirs: Iterable[Path]) -> list[Decoding]:
    """All decoded test sets below the experiments that have statistics."""
    found = []
    for exp_dir in exp_dirs:
        for path in decoded_files(exp_dir, "statistics.json"):
            text = path.parent / "text"
            texts = read_table(text, require_value=False) if text.stat().st_size else {}
            place = tag_and_set(exp_dir, path)
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


def _error_rate(decoding: Decoding) -> tuple[float | None, float | None]:
    """WER in percent and eta, both None before scoring."""
    folder = decoding.folder / "score_wer"
    if not (folder / "result.txt").is_file():
        return None, None
    words = [
        sum(len(line.tokens) for line in read_trn(folder / name)) for name in ("ref.trn", "hyp.trn")
    ]
    wer = float(parse_sum(folder / "result.txt").err)
    return wer, eta(decoding.total.decoder_calls, *words)


def same_texts(decoding: Decoding, plain: Decoding) -> tuple[int, int]:
    """Utterances with plain decoding's text, and utterances of both."""
    both = decoding.texts.keys() & plain.texts.keys()
    return sum(decoding.texts[key] == plain.texts[key] for key in both), len(both)


def compare(decoding: Decoding, plain: Decoding | None) -> ComparisonRow:
    """Put one way of decoding beside plain decoding of the same test set."""
    summary = decoding.total.summary()
    wer, calls_per_word = _error_rate(decoding)
    decoder_speedup = speedup = identical = compared = None
    if plain is not None:
        both = decoding.utterances.keys() & plain.utterances.keys()
        here = sum((decoding.utterances[key] for key in both), DecodingStatistics())
        there = sum((plain.utterances[key] for key in both), DecodingStatistics())
        if here.decoder_seconds and here.total_seconds:
            decoder_speedup = there.decoder_seconds / here.decoder_seconds
            speedup = there.total_seconds / here.total_seconds
        identical, compared = same_texts(decoding, plain)
    return ComparisonRow(
        configuration=decoding.name,
        test_set=decoding.test_set,
        wer=wer,
        eta=calls_per_word,
        tokens_per_call=summary["tokens_per_call"],
        decoder_calls=summary["decoder_calls"],
        acceptance_per_head=summary["acceptance_per_head"],
        decoder_rtf=summary["decoder_rtf"],
        rtf=summary["rtf"],
        decoder_speedup=decoder_speedup,
        speedup=speedup,
        identical=identical,
        compared=compared,
    )


def compare_all(decodings: Sequence[Decoding], plain: Path | None) -> list[ComparisonRow]:
    """One row for each decoding, test set by test set.

    Raises:
        ValueError: Plain decoding was asked for, and no test set has it.
    """
    plains = find_plains(decodings, plain)
    ordered = sorted(decodings, key=lambda item: item.test_set)
    return [compare(item, plains[item.test_set]) for item in ordered]


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def comparison_markdown(rows: Sequence[ComparisonRow]) -> str:
    """The comparison as a section of RESULTS.md; empty without rows."""
    if not rows:
        return ""
    titles = (
        *("dataset", "configuration", "WER", "eta", "tokens/call", "decoder calls"),
        *("accepted per head [%]", "decoder RTF", "RTF", "decoder speedup", "speedup"),
        "same text as plain",
    )
    lines = ["|" + "|".join(titles) + "|", "|" + "---|" * len(titles)]
    for row in rows:
        heads = " ".join(f"{100 * share:.0f}" for share in row.acceptance_per_head) or "-"
        same = "-" if row.compared is None else f"{row.identical}/{row.compared}"
        cells = (
            *(row.test_set, row.configuration, _number(row.wer, 1), _number(row.eta)),
            *(_number(row.tokens_per_call), str(row.decoder_calls), heads),
            *(_number(row.decoder_rtf, 4), _number(row.rtf, 4)),
            *(_number(row.decoder_speedup), _number(row.speedup), same),
        )
        lines.append("|" + "|".join(cells) + "|")
    notes = (
        "eta: decoder calls per word, 2 calls / (reference words + hypothesis words). "
        "RTF: seconds / audio seconds. Speedup: plain decoding's seconds over these."
    )
    return "\n".join(["## Decoding", "", *lines, "", notes, ""])
