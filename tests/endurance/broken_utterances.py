"""Decode broken utterances among good ones; check texts and error reports.

python tests/endurance/broken_utterances.py --model exp/base --data_dir data/test_clean \\
    --table tests/endurance/checks.md

Utterances of a data directory are decoded by asr.sh, stages 3, 12 and 13, and, as files of a
folder, by transcribe: the good ones alone, then together with broken ones of each kind.
The texts of the good ones must not change, each broken one must be reported with its reason, and
the exit status must be 3. Exit status 1: the check failed.
"""

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import harness  # noqa: F401  makes tests/support importable
import numpy as np
import soundfile
from broken_files import BROKEN, write_broken
from harness.checks_table import CheckRow, finish_check
from harness.recipe_run import TEST_SET, decoding_command, make_recipe, results_folder, run

from espnet_medusa.audio.reader import probe_audio, read_audio
from espnet_medusa.bin.command_line import make_main, positive
from espnet_medusa.errors import InputError
from espnet_medusa.inference.journal import FAILED
from espnet_medusa.kaldi.format import BAD_UTTERANCES
from espnet_medusa.kaldi.table import read_results, read_table, write_table

WHOLE = "0 -1"
SOME_FAILED = 3
WINDOW_S, LONGER_THAN_WINDOW_S = 30.0, 31


@dataclass(frozen=True)
class BadLine:
    """An utterance that is broken in the tables or by what they name."""

    entry: str  # of wav.scp
    segment: str = WHOLE  # its start and end


def _wrong_magic(folder: Path, name: str, good: str) -> BadLine:
    path = folder / f"{name}.flac"
    path.write_bytes(b"CaLf" + Path(good).read_bytes()[4:])
    return BadLine(str(path))


def _folder(folder: Path, name: str, good: str) -> BadLine:
    (folder / f"{name}.wav").mkdir()
    return BadLine(str(folder / f"{name}.wav"))


def _too_long(folder: Path, name: str, good: str) -> BadLine:
    samples, rate_hz = read_audio(good)
    path = folder / f"{name}.flac"
    soundfile.write(path, np.resize(samples, LONGER_THAN_WINDOW_S * rate_hz), rate_hz)
    return BadLine(str(path))


def _behind_the_ark(folder: Path, name: str, good: str) -> BadLine:
    path = folder / f"{name}.ark"
    path.write_bytes(b"key AUDIO")
    return BadLine(f"{path}:1000000")


# Function that breaks an utterance, and part of the expected error.
BAD_LINES: dict[str, tuple[Callable[[Path, str, str], BadLine], str]] = {
    "missing": (lambda folder, name, good: BadLine(f"{folder}/{name}.wav"), "cannot be read (No"),
    "folder": (_folder, "is a folder"),
    "wrong_magic": (_wrong_magic, "is no audio that"),
    "too_long": (_too_long, "more than the 30 s"),
    "behind_the_ark": (_behind_the_ark, "contains no wav or flac audio at that offset"),
    "behind_the_end": (
        lambda folder, name, good: BadLine(good, "0.5 3600"),
        "the segment ends at 3600.0 s but",
    ),
    "backwards": (lambda folder, name, good: BadLine(good, "0.9 0.4"), "not after its start"),
    "negative": (lambda folder, name, good: BadLine(good, "-2 0.4"), "impossible times"),
    "command": (lambda folder, name, good: BadLine(f"cat {good} |"), "is a command"),
}
REASONS = {kind: reason for kind, (_, _, reason) in BROKEN.items()} | {
    kind: reason for kind, (_, reason) in BAD_LINES.items()
}


@dataclass(frozen=True)
class Utterances:
    """The utterances of the check."""

    good: dict[str, str]  # id to path
    # Their transcripts, and those of the utterances in whose place broken ones are.
    text: dict[str, str]
    broken: dict[str, str]  # id to how it is broken
    lines: dict[str, BadLine]  # their lines

    @property
    def files(self) -> dict[str, str]:
        """Return paths of broken audio files by id."""
        return {key: self.lines[key].entry for key, kind in self.broken.items() if kind in BROKEN}


def break_some(data_dir: Path, count: int, broken: int, folder: Path, seed: int) -> Utterances:
    """Utterances that fit the window, some of them broken, each way in turn.

    Raises:
        InputError: There are not so many.
    """
    table = read_table(data_dir / "wav.scp").items()
    fit = ((key, entry) for key, entry in table if probe_audio(entry).duration_s <= WINDOW_S)
    entries = dict(islice(fit, count))
    if len(entries) < count or broken > count:
        raise InputError(f"{data_dir}: {len(entries)} utterances; allowed: --utterances or more")
    text = read_table(data_dir / "text")
    kinds = [*BAD_LINES, *BROKEN]
    keys = random.Random(seed).sample(sorted(entries), broken)
    kind_of = {key: kinds[place % len(kinds)] for place, key in enumerate(keys)}
    folder.mkdir()
    lines = {}
    for key, kind in kind_of.items():
        if kind in BROKEN:
            lines[key] = BadLine(str(write_broken(folder, kind, key)))
        else:
            lines[key] = BAD_LINES[kind][0](folder, key, entries[key])
    good = {key: entry for key, entry in entries.items() if key not in lines}
    return Utterances(good, {key: text[key] for key in entries}, kind_of, lines)


def write_data(folder: Path, utterances: Utterances, lines: dict[str, BadLine]) -> None:
    """Write a data directory of the good utterances and these lines, with segments."""
    lines = {key: BadLine(entry) for key, entry in utterances.good.items()} | lines
    write_table(folder / "wav.scp", {f"rec-{key}": line.entry for key, line in lines.items()})
    write_table(folder / "segments", {k: f"rec-{k} {line.segment}" for k, line in lines.items()})
    write_table(folder / "text", {key: utterances.text[key] for key in lines})
    write_table(folder / "utt2spk", {key: key for key in lines})


def decode_by_recipe(
    args: argparse.Namespace, folder: Path, utterances: Utterances, lines: dict[str, BadLine]
) -> tuple[int, dict[str, str], dict[str, str]]:
    """Return exit status, and texts and reasons by utterance."""
    recipe = make_recipe(folder, args.model)
    write_data(recipe / "data" / TEST_SET, utterances, lines)
    options = ["--inference_nj", "1", "--nj", "2", "--batch_size", str(args.batch_size)]
    options += ["--inference_config", str(args.config.resolve())]
    done = run(decoding_command((3, 13), *options), recipe)
    (folder / "log").write_text(done.stdout + done.stderr)
    texts = results_folder(recipe) / "text"
    if not texts.is_file():
        raise InputError(f"asr.sh: {done.stderr.strip().splitlines()[-1:]}; see {folder / 'log'}")
    bad = read_results(recipe / "dump" / "raw" / TEST_SET / BAD_UTTERANCES)
    return done.returncode, read_results(texts), bad


def decode_by_transcribe(
    args: argparse.Namespace, folder: Path, utterances: Utterances
) -> tuple[int, dict[str, str], dict[str, str]]:
    """Exit status, texts and reasons by file, of good and broken ones that are files."""
    audio = folder / "audio"
    audio.mkdir(parents=True)
    for key, path in {**utterances.good, **utterances.files}.items():
        (audio / f"{key}{Path(path).suffix}").symlink_to(Path(path).resolve())
    command = ["python3", "-m", "espnet_medusa.bin.transcribe", str(audio)]
    command += ["--model", str(args.model.resolve()), "--batch_size", str(args.batch_size)]
    command += ["--config", str(args.config.resolve()), "--output_dir", str(folder / "out")]
    done = run(command, folder)
    texts, failed = (read_results(folder / "out" / name) for name in ("text", FAILED))
    return done.returncode, texts, failed


def count_differing(found: dict[str, str], expected: dict[str, str]) -> int:
    """Utterances whose text is another, is not there or should not be."""
    keys = found.keys() | expected.keys()
    return sum(
        " ".join(found.get(key, "\0").split()) != " ".join(expected.get(key, "\0").split())
        for key in keys
    )


def count_unnamed(reasons: dict[str, str], broken: dict[str, str]) -> int:
    """Broken ones that are not named with their reason, and others that are named."""
    named = {key for key, kind in broken.items() if REASONS[kind] in reasons.get(key, "")}
    return len(broken.keys() - named) + len(reasons.keys() - broken.keys())


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's options."""
    parser.add_argument("--model", type=Path, required=True, help="an experiment")
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp of files, and text")
    parser.add_argument("--utterances", type=positive, default=1000)
    parser.add_argument("--broken", type=positive, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch_size", type=positive, default=4)
    parser.add_argument("--config", type=Path, required=True, help="of decoding (.yaml)")
    parser.add_argument("--work_dir", type=Path, help="kept; default: a temporary folder")
    parser.add_argument("--table", type=Path, help="gets a row (.md)")


def work(args: argparse.Namespace) -> int:
    """Decode and compare; the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = args.work_dir or Path(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        found, right = check(args, folder.resolve())
    command = f"broken_utterances.py --utterances {args.utterances} --broken {args.broken}"
    row = CheckRow("broken utterances", found, "yes" if right else "no", command)
    return finish_check(row, args.table)


def check(args: argparse.Namespace, folder: Path) -> tuple[str, bool]:
    """Return the result in one sentence, and whether it is right."""
    some = break_some(args.data_dir, args.utterances, args.broken, folder / "broken", args.seed)
    alone, expected, nobody = decode_by_recipe(args, folder / "alone", some, {})
    status, texts, reasons = decode_by_recipe(args, folder / "together", some, some.lines)
    files_status, files_texts, files_reasons = decode_by_transcribe(args, folder / "files", some)
    in_files = {key: some.broken[key] for key in some.files}
    differing = count_differing(texts, expected), count_differing(files_texts, expected)
    unnamed = count_unnamed(reasons, some.broken), count_unnamed(files_reasons, in_files)
    right = alone == 0 and not nobody and expected.keys() == some.good.keys()
    right = right and (status, files_status) == (SOME_FAILED, SOME_FAILED)
    right = right and not any((*differing, *unnamed))
    kinds, file_kinds = len({*some.broken.values()}), len({*in_files.values()})
    found = (
        f"asr.sh: {len(expected)} good utterances and {len(some.broken)} broken in {kinds} ways: "
        f"{differing[0]} texts differ, {unnamed[0]} not named, status {status}; transcribe: the "
        f"good ones and {len(in_files)} broken files of {file_kinds} ways: {differing[1]} texts "
        f"differ, {unnamed[1]} not named, status {files_status}"
    )
    return found, right


main = make_main("broken_utterances", __doc__, add_options, work)


if __name__ == "__main__":
    main()
