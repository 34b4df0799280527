"""Decode broken utterances among good ones; check texts and error reports.

python tests/endurance/broken_utterances.py --model exp/base --data_dir data/test_clean \\
    --config conf/decode/exact.yaml --table tests/endurance/checks.md

asr.sh (stages 3, 12 and 13) decodes good utterances of a data directory, first alone, then with
broken ones. transcribe decodes the good ones and the broken files together, from one folder. The
texts must be those of the good ones alone, each broken one must be reported with its reason, and
the exit status must be 3. Exit status 1: the check failed.
"""

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import harness
import numpy as np
import soundfile
from harness import TABLES, TEST_SET, run
from media_files import BROKEN, write_broken

from espnet_medusa.data.audio.reader import probe_audio, read_audio
from espnet_medusa.data.command_line import SOME_FAILED, positive
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import read_results, read_table, write_table
from espnet_medusa.inference.journal import FAILED
from espnet_medusa.recipes.kaldi.format import BAD_UTTERANCES

WHOLE = "0 -1"
WINDOW_S, LONGER_THAN_WINDOW_S = 30.0, 31
Line = tuple[str, str]  # an utterance's entry of wav.scp; its start and end
Decoded = tuple[int, dict[str, str], dict[str, str]]  # exit status; texts; reasons of failures


def _write_long(path: Path, good: str) -> None:
    samples, rate_hz = read_audio(good)
    soundfile.write(path, np.resize(samples, LONGER_THAN_WINDOW_S * rate_hz), rate_hz)


def _damage(path: Path, good: str) -> None:
    path.write_bytes(b"CaLf" + Path(good).read_bytes()[4:])


# Function of a new path and a good entry that writes a file; entry, times; part of the error.
BAD_LINES: dict[str, tuple[Callable[[Path, str], object] | None, str, str, str]] = {
    "missing": (None, "{path}", WHOLE, "cannot be read (No"),
    "folder": (lambda path, _: path.mkdir(), "{path}", WHOLE, "is a folder"),
    "wrong_magic": (_damage, "{path}", WHOLE, "is corrupt or truncated"),
    "too_long": (_write_long, "{path}", WHOLE, "more than the 30 s"),
    "after_the_ark": (
        lambda path, _: path.write_bytes(b"key AUDIO"), "{path}:1000000", WHOLE,
        "contains no wav or flac audio at that offset",
    ),
    "after_the_end": (None, "{good}", "0.5 3600", "the segment ends at 3600.0 s but"),
    "backwards": (None, "{good}", "0.9 0.4", "not after its start"),
    "negative": (None, "{good}", "-2 0.4", "impossible times"),
    "command": (None, "cat {good} |", WHOLE, "is a command"),
}  # fmt: skip
REASONS = {kind: reason for kind, (*_, reason) in (BROKEN | BAD_LINES).items()}


@dataclass(frozen=True)
class Utterances:
    good: dict[str, str]  # id to path
    text: dict[str, str]  # transcripts of all
    broken: dict[str, str]  # id to how it is broken
    lines: dict[str, Line]  # the broken lines


def break_some(data_dir: Path, count: int, broken: int, folder: Path) -> Utterances:
    """Return utterances that fit the window, some of them broken, each way in turn.

    Raises:
        InputError: Fewer than ``count`` utterances fit, or ``broken`` is larger than ``count``.
    """
    table = read_table(data_dir / "wav.scp").items()
    fit = ((key, entry) for key, entry in table if probe_audio(entry).duration_s <= WINDOW_S)
    entries = dict(islice(fit, count))
    if len(entries) < count or broken > count:
        raise InputError(f"{data_dir}: {len(entries)} are too few for {count} with {broken} broken")
    text = read_table(data_dir / "text")
    kinds = [*BAD_LINES, *BROKEN]
    keys = random.Random(0).sample(sorted(entries), broken)
    kind_of = {key: kinds[place % len(kinds)] for place, key in enumerate(keys)}
    folder.mkdir()
    lines = {}
    for key, kind in kind_of.items():
        if kind in BROKEN:
            lines[key] = str(write_broken(folder, kind, key)), WHOLE
        else:
            (write, entry, times, _), path = BAD_LINES[kind], folder / f"{key}.flac"
            if write is not None:
                write(path, entries[key])
            lines[key] = entry.format(path=path, good=entries[key]), times
    good = {key: entry for key, entry in entries.items() if key not in lines}
    return Utterances(good, {key: text[key] for key in entries}, kind_of, lines)


def write_data(folder: Path, utterances: Utterances, lines: dict[str, Line]) -> None:
    lines = {key: (entry, WHOLE) for key, entry in utterances.good.items()} | lines
    wav_scp = {f"rec-{key}": entry for key, (entry, _) in lines.items()}
    segments = {key: f"rec-{key} {times}" for key, (_, times) in lines.items()}
    text, utt2spk = {key: utterances.text[key] for key in lines}, {key: key for key in lines}
    for name, table in zip(("segments", *TABLES), (segments, wav_scp, text, utt2spk), strict=True):
        write_table(folder / name, table)


def decode_by_recipe(
    args: argparse.Namespace, folder: Path, utterances: Utterances, lines: dict[str, Line]
) -> Decoded:
    recipe = harness.make_recipe(folder, args.model)
    write_data(recipe / "data" / TEST_SET, utterances, lines)
    options = ["--inference_nj", "1", "--nj", "2", "--batch_size", "4"]
    options += ["--inference_config", str(args.config.resolve())]
    done = run(harness.decoding_command((3, 13), *options), recipe)
    texts = recipe / harness.RESULTS / "text"
    if not texts.is_file():
        raise InputError(f"asr.sh:\n{done.stdout}{done.stderr}")
    bad = read_results(recipe / "dump" / "raw" / TEST_SET / BAD_UTTERANCES)
    return done.returncode, read_results(texts), bad


def decode_by_transcribe(args: argparse.Namespace, folder: Path, files: dict[str, str]) -> Decoded:
    audio = folder / "audio"
    audio.mkdir(parents=True)
    for key, path in files.items():
        (audio / f"{key}{Path(path).suffix}").symlink_to(Path(path).resolve())
    command = ["python3", "-m", "espnet_medusa.bin.transcribe", str(audio)]
    command += ["--model", str(args.model.resolve()), "--batch_size", "4"]
    command += ["--config", str(args.config.resolve()), "--output_dir", str(folder / "out")]
    done = run(command, folder)
    texts, failed = (read_results(folder / "out" / name) for name in ("text", FAILED))
    return done.returncode, texts, failed


def count_differing(texts: dict[str, str], expected: dict[str, str]) -> int:
    """Return the number of utterances whose text differs, is missing or should be missing."""
    first, second = ({key: text.split() for key, text in t.items()} for t in (texts, expected))
    return len(harness.differing(first, second))


def count_unnamed(reasons: dict[str, str], broken: dict[str, str]) -> int:
    """Return the number of broken utterances without their reason and of others with a reason."""
    named = {key for key, kind in broken.items() if REASONS[kind] in reasons.get(key, "")}
    return len(broken.keys() - named) + len(reasons.keys() - broken.keys())


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="an experiment")
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp of files, and text")
    parser.add_argument("--utterances", type=positive, default=1000)
    parser.add_argument("--broken", type=positive, default=50)
    parser.add_argument("--config", type=Path, required=True, help="of decoding (.yaml)")


def check(args: argparse.Namespace, folder: Path) -> tuple[str, str]:
    some = break_some(args.data_dir, args.utterances, args.broken, folder / "broken")
    alone, expected, unexpected = decode_by_recipe(args, folder / "alone", some, {})
    together = decode_by_recipe(args, folder / "together", some, some.lines)
    broken_files = {key: kind for key, kind in some.broken.items() if kind in BROKEN}
    paths = some.good | {key: some.lines[key][0] for key in broken_files}
    files = decode_by_transcribe(args, folder / "files", paths)
    right = alone == 0 and not unexpected and expected.keys() == some.good.keys()
    sentences = []
    for decoded, broken in ((together, some.broken), (files, broken_files)):
        status, texts, reasons = decoded
        counts = count_differing(texts, expected), count_unnamed(reasons, broken)
        right = right and (status, *counts) == (SOME_FAILED, 0, 0)
        sentences.append(f"{counts[0]} texts differ, {counts[1]} reported wrongly, status {status}")
    kinds, file_kinds = ({*broken.values()} for broken in (some.broken, broken_files))
    figures = (
        f"asr.sh: {len(expected)} good utterances and {len(some.broken)} broken in {len(kinds)} "
        f"ways: {sentences[0]}; transcribe: the good ones and {len(broken_files)} broken files of "
        f"{len(file_kinds)} ways: {sentences[1]}"
    )
    return figures, "" if right else "no"


main = harness.make_check("broken utterances", __file__, __doc__, add_options, check)


if __name__ == "__main__":
    main()
