"""Scores one decoded test set: ref.trn, hyp.trn and result.txt of WER, CER and TER."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from espnet2.text.char_tokenizer import CharTokenizer
from espnet2.text.sentencepiece_tokenizer import SentencepiecesTokenizer
from espnet2.text.word_tokenizer import WordTokenizer

from espnet_medusa.kaldi.table import read_results, read_table
from espnet_medusa.options import read_config
from espnet_medusa.recipe.scored_eta import add_scored_eta
from espnet_medusa.recipe.tokens import make_cleaner
from espnet_medusa.scoring.trn import list_some, write_trn

Tokenize = Callable[[str], list[str]]


@dataclass(frozen=True)
class ScoreOptions:
    """How to score.

    Attributes:
        cleaner: ESPnet text cleaner of the references, or none.
        hyp_cleaner: That of the hypotheses.
        bpe_model: sentencepiece model; token error rate only with one. None: the experiment's.
        asr_train_config: Of the experiment that wrote the hypotheses, which names its tokenizer.
        non_linguistic_symbols: File with symbols that do not count, or None.
        allow_missing: Count a missing hypothesis as deletions; otherwise it is an error.
        sclite: Path of the real sclite, or None for ours.
        sclite_options: More options for either.
    """

    cleaner: str = "none"
    hyp_cleaner: str = "none"
    bpe_model: Path | None = None
    asr_train_config: Path | None = None
    non_linguistic_symbols: Path | None = None
    allow_missing: bool = False
    sclite: str | None = None
    sclite_options: tuple[str, ...] = ()


def tokenizers(options: ScoreOptions) -> dict[str, Tokenize]:
    """The tokenizer of each error rate: wer, cer, and ter where there is a bpe model.

    Raises:
        ValueError: The bpe model does not exist.
        InputError: The experiment's configuration cannot be read.
    """
    symbols = options.non_linguistic_symbols
    removal = {
        "non_linguistic_symbols": symbols,
        "remove_non_linguistic_symbols": symbols is not None,
    }
    chosen = {
        "wer": WordTokenizer(**removal).text2tokens,
        "cer": CharTokenizer(**removal).text2tokens,
    }
    model = options.bpe_model or trained_bpe_model(options.asr_train_config)
    if model is not None:
        if not model.is_file():
            source = "" if options.bpe_model else f" ({options.asr_train_config} names it)"
            raise ValueError(
                f"--bpemodel {model}: no such file{source}; give the one that there is"
            )
        chosen["ter"] = SentencepiecesTokenizer(str(model)).text2tokens
    return chosen


def trained_bpe_model(config: Path | None) -> Path | None:
    """The sentencepiece model of an experiment; None: it has other tokens.

    Raises:
        InputError: Its configuration cannot be read.
    """
    if config is None:
        return None
    found = read_config(config, "scores need the configuration of the decoded experiment")
    is_bpe = found.get("token_type") == "bpe" and found.get("bpemodel")
    return Path(found["bpemodel"]) if is_bpe else None


def join_by_id(
    references: dict[str, str], hypotheses: dict[str, str], allow_missing: bool, names: str
) -> dict[str, str]:
    """Hypotheses in the references' ids, empty where missing.

    Raises:
        ValueError: Hypotheses are missing and that is not allowed, or have unknown ids.
    """
    unknown = hypotheses.keys() - references.keys()
    if unknown:
        raise ValueError(f"{names}: no reference for {list_some(sorted(unknown))}")
    missing = references.keys() - hypotheses.keys()
    if missing and not allow_missing:
        raise ValueError(
            f"{names}: no hypothesis for {len(missing)} utterances: {list_some(sorted(missing))}; "
            "decode again, or count them as deletions with --allow_missing true"
        )
    return {utterance: hypotheses.get(utterance, "") for utterance in references}


def sclite_command(options: ScoreOptions, ref: Path, hyp: Path) -> list[str]:
    """The command line of sclite, ours or the real one."""
    program = [options.sclite] if options.sclite else [sys.executable, "-m"]
    program += [] if options.sclite else ["espnet_medusa.bin.sclite"]
    files = ["-r", str(ref), "trn", "-h", str(hyp), "trn"]
    return [*program, *options.sclite_options, *files, "-i", "rm", "-o", "all", "stdout"]


def write_report(options: ScoreOptions, folder: Path) -> None:
    """Run sclite on `folder/{ref,hyp}.trn` into `folder/result.txt`.

    Raises:
        ValueError: sclite is not there or fails.
        OSError: The report cannot be written.
    """
    command = sclite_command(options, folder / "ref.trn", folder / "hyp.trn")
    report = folder / "result.txt"
    staging = report.with_name(f".{report.name}.partial")
    try:
        with staging.open("wb") as stream:
            try:
                done = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, check=False)
            except OSError as error:
                raise ValueError(f"--sclite {options.sclite}: {error.strerror}") from error
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().split("\n")[-1]
            raise ValueError(f"{' '.join(command)}: status {done.returncode}: {reason}")
        staging.replace(report)
    finally:
        staging.unlink(missing_ok=True)


def score(data_dir: Path, output_dir: Path, options: ScoreOptions) -> list[Path]:
    """Score `output_dir/text` against `data_dir/text`.

    Args:
        data_dir: Holds text and utt2spk.
        output_dir: Holds the merged hypotheses; gets score_{wer,cer,ter}.
        options: How to score.

    Returns:
        The result.txt files. Where decoding left statistics.json, it gets eta.

    Raises:
        ValueError: Ids do not match, or sclite fails.
    """
    references = read_table(data_dir / "text", require_value=False)
    hypotheses = join_by_id(
        references,
        read_results(output_dir / "text"),
        options.allow_missing,
        f"{data_dir / 'text'}, {output_dir / 'text'}",
    )
    speakers = read_table(data_dir / "utt2spk")
    unnamed = references.keys() - speakers.keys()
    if unnamed:
        raise ValueError(f"{data_dir / 'utt2spk'}: no speaker for {list_some(sorted(unnamed))}")
    clean, clean_hyp = make_cleaner(options.cleaner), make_cleaner(options.hyp_cleaner)
    results = []
    for name, tokenize in tokenizers(options).items():
        folder = output_dir / f"score_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        for side, texts, cleaner in (("ref", references, clean), ("hyp", hypotheses, clean_hyp)):
            tokens = {key: tokenize(cleaner(text)) for key, text in texts.items()}
            write_trn(folder / f"{side}.trn", tokens, speakers)
        write_report(options, folder)
        results.append(folder / "result.txt")
    if (output_dir / "statistics.json").is_file():
        add_scored_eta(output_dir)
    return results
