"""Scores a decoded test set: trn files and result.txt of WER, CER and TER, and calls per word."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.data.errors import InputError, list_some
from espnet_medusa.data.kaldi.data_dir import RENAME, bad_labels
from espnet_medusa.data.kaldi.table import join_words, read_results, read_table
from espnet_medusa.data.options import option, read_config
from espnet_medusa.decoding.search.statistics import add_eta
from espnet_medusa.recipes.scoring.trn import read_trn, write_trn
from espnet_medusa.recipes.tokens import make_cleaner


@dataclass(frozen=True)
class ScoreOptions:
    cleaner: str = option("none", "ESPnet text cleaner of the references, or none")
    hyp_cleaner: str = option("none", "text cleaner of the hypotheses, or none")
    allow_missing: bool = option(False, "count missing hypotheses as deletions")
    bpemodel: str = option("", "bpe model for the token error rate; default: the experiment's")
    asr_train_config: str = option("", "config of the experiment, for its bpe model")
    non_linguistic_symbols: str = option("none", "file of symbols that are not scored, or none")
    sclite: str = option("", "path of NIST's sclite; default: our own")
    hypotheses: str = option("text", "file of the hypotheses; of s2t models: text_nospecial")
    sclite_options: str = option("", "options of sclite, such as `-s` (case-sensitive)")


def tokenizers(options: ScoreOptions) -> dict[str, Callable[[str], list[str]]]:
    """Return tokenizers of wer, cer, and with a bpe model also ter; ValueError without a file."""
    from espnet2.text.char_tokenizer import CharTokenizer  # slow to import
    from espnet2.text.sentencepiece_tokenizer import SentencepiecesTokenizer
    from espnet2.text.word_tokenizer import WordTokenizer

    symbols = options.non_linguistic_symbols
    symbols = None if symbols in ("none", "") else Path(symbols)
    if symbols and not symbols.is_file():
        raise InputError(f"--non_linguistic_symbols {symbols}: no such file; give an existing one")
    if symbols:  # ESPnet's tokenizer never ends with a blank line of the file
        lines = symbols.read_text(encoding="utf-8").splitlines()
        symbols = [line.rstrip() for line in lines if line.strip()]
    removal = dict(non_linguistic_symbols=symbols, remove_non_linguistic_symbols=bool(symbols))
    kinds = {"wer": WordTokenizer, "cer": CharTokenizer}
    chosen = {name: kind(**removal).text2tokens for name, kind in kinds.items()}
    model = options.bpemodel
    if options.asr_train_config and not model:
        remedy = "scoring needs the config of the decoded experiment"
        trained = read_config(Path(options.asr_train_config), remedy)
        model = trained.get("bpemodel") if trained.get("token_type") == "bpe" else None
    if model:
        if not Path(model).is_file():
            source = "" if options.bpemodel else f" ({options.asr_train_config} names it)"
            raise ValueError(f"--bpemodel {model}: no such file{source}; give an existing one")
        chosen["ter"] = SentencepiecesTokenizer(model).text2tokens
    return chosen


def check_options(options: ScoreOptions) -> None:
    """Raise ValueError if a cleaner, file or program of the options cannot be used."""
    for name in (options.cleaner, options.hyp_cleaner):
        make_cleaner(name)
    tokenizers(options)
    if options.sclite and shutil.which(options.sclite) is None:
        raise InputError(f"--sclite {options.sclite}: no such program; give its path")


def sclite_command(options: ScoreOptions, ref: Path, hyp: Path) -> list[str]:
    ours = [sys.executable, "-m", "espnet_medusa.bin.sclite"]
    program = [options.sclite] if options.sclite else ours
    files = ["-r", str(ref), "trn", "-h", str(hyp), "trn", "-i", "rm", "-o", "all", "stdout"]
    return [*program, *shlex.split(options.sclite_options), *files]


def write_report(options: ScoreOptions, folder: Path) -> None:
    """Run sclite on `folder/{ref,hyp}.trn` into `result.txt`; raise ValueError if it fails."""
    command = sclite_command(options, folder / "ref.trn", folder / "hyp.trn")
    report = folder / "result.txt"
    staging = report.with_name(f".{report.name}.partial")
    try:
        with staging.open("wb") as stream:
            try:
                done = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, check=False)
            except OSError as error:
                raise ValueError(f"--sclite {options.sclite}: {error.strerror}") from error
        messages = done.stderr.decode(errors="replace")
        if done.returncode:
            reason = messages.strip().split("\n")[-1]
            remedy = ""
            if options.sclite:
                files = (folder / "ref.trn", folder / "hyp.trn")
                braces = any("{" in path.read_text(encoding="utf-8") for path in files)
                cause = ", which fails on '{' in texts" if braces else ""
                remedy = f"; omit --sclite{cause}: our scorer needs no program"
            raise ValueError(f"{' '.join(command)}: status {done.returncode}: {reason}{remedy}")
        print(messages, end="", file=sys.stderr)
        staging.replace(report)
    finally:
        staging.unlink(missing_ok=True)


def score(data_dir: Path, output_dir: Path, options: ScoreOptions) -> list[Path]:
    """Score hypotheses of `output_dir` against `data_dir/text`; add eta to statistics.json, if any.

    Return the reports `output_dir/score_{wer,cer,ter}/result.txt`. Raise ValueError if ids do not
    match or sclite fails.
    """
    references = read_table(data_dir / "text", require_value=False)
    file = output_dir / options.hypotheses
    names = f"{data_dir / 'text'}, {file}"
    hypotheses = read_results(file)
    if unknown := hypotheses.keys() - references.keys():
        raise ValueError(f"{names}: no reference for {list_some(sorted(unknown))}")
    missing = references.keys() - hypotheses.keys()
    if missing and not options.allow_missing:
        raise ValueError(
            f"{names}: no hypothesis for {len(missing)} utterances: {list_some(sorted(missing))}; "
            "decode again, or count them as deletions with --allow_missing true"
        )
    hypotheses = {key: hypotheses.get(key, "") for key in references}
    speakers = read_table(data_dir / "utt2spk")
    if unnamed := references.keys() - speakers.keys():
        raise ValueError(f"{data_dir / 'utt2spk'}: no speaker for {list_some(sorted(unnamed))}")
    if bad := bad_labels({key: speakers[key] for key in references}):
        reasons = list_some(f"{key}: {reason}" for key, reason in bad.items())
        raise ValueError(f"{data_dir / 'utt2spk'}: {reasons}; {RENAME}")
    clean, clean_hyp = make_cleaner(options.cleaner), make_cleaner(options.hyp_cleaner)
    results = []
    for name, tokenize in tokenizers(options).items():
        folder = output_dir / f"score_{name}"
        for side, texts, cleaner in (("ref", references, clean), ("hyp", hypotheses, clean_hyp)):
            tokens = {key: tokenize(cleaner(_scorable(text))) for key, text in texts.items()}
            write_trn(folder / f"{side}.trn", tokens, speakers)
        write_report(options, folder)
        results.append(folder / "result.txt")
    if (output_dir / "statistics.json").is_file():
        add_scored_eta(output_dir)
    return results


def count_insertions_in_silence(folder: Path) -> tuple[int, int]:
    """Return the utterances without reference words, and their hypotheses' words.

    ``folder`` contains the trn files of a scored set.
    """
    references, hypotheses = (read_trn(folder / name) for name in ("ref.trn", "hyp.trn"))
    silent = {line.id for line in references if not line.tokens}
    return len(silent), sum(len(line.tokens) for line in hypotheses if line.id in silent)


def _scorable(text: str) -> str:
    """Join words as ESPnet's stage 13 does; trn files cannot contain NUL characters."""
    return join_words(text).replace("\0", "\N{REPLACEMENT CHARACTER}")


def words_by_utterance(trn: Path, ids: Container[str]) -> dict[str, int]:
    """Count the words of each line of a trn file, by utterance id.

    Labels are `<speaker>-<utterance>`, and both may contain hyphens. A line without a known id is
    counted by its label.
    """
    words: dict[str, int] = {}
    for line in read_trn(trn):
        known = (key for key in utterance_ids(line.id, ids) if key not in words)
        words[next(known, line.id)] = len(line.tokens)
    return words


def utterance_ids(label: str, ids: Container[str]) -> Iterator[str]:
    """Yield the known ids that a label of a trn file can have, the longest first."""
    parts = label.split("-")
    endings = ("-".join(parts[start:]) for start in range(1, len(parts)))
    return (key for key in endings if key in ids)


def add_scored_eta(folder: Path) -> None:
    """Add eta (calls per word) to the statistics of a scored test set; ValueError if ids differ."""
    decoded = read_results(folder / "text")
    reference, hypothesis = (folder / "score_wer" / name for name in ("ref.trn", "hyp.trn"))
    words = [words_by_utterance(path, decoded) for path in (reference, hypothesis)]
    for path, scored in zip((reference, hypothesis), words, strict=True):
        if missing := decoded.keys() - scored.keys():
            names = list_some(sorted(missing))
            raise ValueError(f"{path}: no line of {names}; score again (stage 13)")
    # ESPnet's stage 13 pairs texts and ids by line number: a missing text shifts those after it.
    if shifted := [key for key in words[1] if key not in decoded and words[1][key]]:
        raise ValueError(
            f"{hypothesis}: has words of {list_some(shifted)}, which {folder / 'text'} does not "
            "have: hypotheses are paired with wrong references; decode what failed, or remove it "
            "from the test set, then score again (stage 13)"
        )
    add_eta(folder / "statistics.json", *words)
