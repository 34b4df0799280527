"""Fill the disk in the middle of each stage; check the error and the next run.

python tests/endurance/full_disk.py --whisper openai/whisper-tiny.en --data_dir data/test_clean \\
    --table tests/endurance/checks.md

A recipe lies on a small disk in memory (tmpfs; without root in a user namespace, by unshare).
Before each step the disk is given room for a part of what the step writes. Wanted are an exit
status other than 0, one line that names a file and says that the disk is full or too small, and no
traceback. Then there is room, and the same command has to end with what it leaves undisturbed.
Exit status 1: a step does otherwise.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import harness  # noqa: F401  makes tests/support importable
from harness.checks_table import CheckRow, finish_check
from harness.recipe_run import make_recipe, run, run_to_end
from tiny_transformer import TRAINING

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.table import read_table, write_table

MINI_SYNTH = Path(__file__).resolve().parents[2] / "egs" / "mini_synth" / "asr1"
ROOMY, PAGE = 4 << 30, 4096
FULL = "No space left on device"
TOO_SMALL = "GB are free; name a folder on another disk"  # said before anything is written
# Its last digits follow from where arrays lie in memory.
NUMBER = re.compile(rb"-?\d+\.\d{6,}")
NAMES_A_FILE = re.compile(r"[\w.~-]*/[\w./~-]+|\w+\.\w+")
DECODING = "beam_size: 2\nctc_weight: 0.3\nmaxlenratio: -4\n"
SETS = {"train": 40, "dev": 6, "test": 6}
# They hold seconds, dates or names drawn anew.
VOLATILE = re.compile(
    r"\.log$|\.stamp\.json$|statistics\.json$|decoding\.json$|RESULTS\.md$|journal\.jsonl$|"
    r"\.zip$|checkpoint\.pth$|images/|tensorboard"
)


@dataclass(frozen=True)
class Step:
    """A command that writes."""

    name: str  # what it is called
    command: list[str]  # its words, in the recipe's folder


def steps(args: argparse.Namespace) -> list[Step]:
    """Return the steps in the order in which they depend on each other."""
    asr = ["./asr.sh", "--data_dir", "own", "--train_set", "train", "--valid_set", "dev"]
    asr += ["--test_sets", "test", "--ngpu", "0", "--nj", "1", "--inference_nj", "1"]
    asr += ["--token_type", "char", "--asr_config", "conf/train.yaml", "--asr_exp", "exp/asr"]
    asr += ["--inference_config", "conf/decode.yaml", "--asr_stats_dir", "exp/stats"]
    asr += ["--max_wav_duration", "30", "--skip_packing", "false"]
    stages = {
        "stage 3, format": (3, 4),
        "stage 5, tokens": (5, 5),
        "stage 10, statistics": (10, 10),
        "stage 11, training": (11, 11),
        "stage 12, decoding": (12, 12),
        "stage 13, scoring": (13, 13),
        "stage 14, packing": (14, 14),
    }
    found = [Step("stage 1, mini_synth", ["python3", str(MINI_SYNTH / "local/make_corpus.py"),
        "--output_dir", "spoken", "--minutes", "0.5", "--dev_utterances", "2",
        "--test_utterances", "2"])]  # fmt: skip
    found += [
        Step(name, [*asr, "--stage", str(first), "--stop_stage", str(last)])
        for name, (first, last) in stages.items()
    ]
    whisper = "exp/whisper"
    python = ["python3", "-m"]
    found += [
        Step("convert", [*python, "espnet_medusa.bin.convert", str(args.whisper), whisper]),
        Step("cache_states", [*python, "espnet_medusa.stages", "cache_states", "--exp_dir", whisper,
            "--data_dir", "dump/raw/test", "--output_dir", "states"]),
        Step("transcribe", [*python, "espnet_medusa.bin.transcribe", "audio", "--model", whisper,
            "--output_format", "all"]),
    ]  # fmt: skip
    return found


@contextmanager
def small_disk() -> Iterator[Path]:
    """A folder in memory, roomy at first.

    Raises:
        InputError: This machine refuses it.
    """
    with tempfile.TemporaryDirectory() as name:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOMY}", "tmpfs", name]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"mount: {done.stderr.strip()}; this machine mounts no tmpfs")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


def resize(disk: Path, size: int) -> None:
    """Change the size of the disk."""
    options = f"remount,size={max(size, PAGE)}"
    subprocess.run(["mount", "-o", options, str(disk)], check=True)


def used(disk: Path) -> int:
    """Bytes."""
    facts = os.statvfs(disk)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def contents(folder: Path) -> dict[str, bytes]:
    """Files whose bytes say nothing of time, by path; of the others the path alone."""
    return {
        name: b"" if VOLATILE.search(name) else rounded(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "logdir" not in (name := str(path.relative_to(folder)))
    }


def rounded(path: Path) -> bytes:
    """What a file holds; numbers of JSON to four digits."""
    held = path.read_bytes()
    if path.suffix != ".json":
        return held
    return NUMBER.sub(lambda number: b"%.4f" % float(number[0]), held)


def restore(kept: Path, recipe: Path) -> None:
    """The recipe as it was kept."""
    shutil.rmtree(recipe, ignore_errors=True)
    shutil.copytree(kept, recipe, symlinks=True)


def problems_of_message(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return problems of the output of a command on a full disk."""
    shown = (done.stdout + done.stderr).splitlines()
    told = [line for line in shown if FULL in line]
    found = [] if done.returncode else ["status 0"]
    named = any(NAMES_A_FILE.search(line.replace(FULL, "")) for line in told)
    if not named and not any(TOO_SMALL in line for line in shown):
        found.append("no line names a file and says that the disk is full")
    if any(line.startswith("Traceback") for line in shown):
        found.append("a traceback")
    return found


def try_step(step: Step, disk: Path, kept: Path, parts: Sequence[float], log: Path) -> list[str]:
    """Problems of a step; the recipe is left as it makes it undisturbed.

    Raises:
        InputError: Undisturbed it fails.
    """
    recipe = disk / "recipe"
    before = used(disk)
    run_to_end(step.name, step.command, recipe)
    expected, grown = contents(recipe), used(disk) - before
    problems = []
    for part in parts:
        resize(disk, ROOMY)
        restore(kept, recipe)
        resize(disk, used(disk) + int(part * grown) // PAGE * PAGE)
        done = run(step.command, recipe)
        resize(disk, ROOMY)
        found = problems_of_message(done)
        again = run(step.command, recipe)
        if again.returncode:
            found.append(f"then status {again.returncode}")
        else:
            made = contents(recipe)
            other = {name for name in made.keys() | expected.keys()
                     if made.get(name) != expected.get(name)}  # fmt: skip
            found += [f"{name} differs" for name in sorted(other)]
        with log.open("a", encoding="utf-8") as stream:
            for title, one in (("full", done), ("again", again)):
                stream.write(f"=== {step.name}, {part:g}, {title}: status {one.returncode}\n")
                stream.write(one.stdout + "--- stderr\n" + one.stderr)
        problems += [f"{step.name} at {part:g}: {problem}" for problem in found]
    print(*problems, sep="\n", end="\n" if problems else "", flush=True)
    print(f"{step.name}: {grown // PAGE} pages, {len(problems)} problems", flush=True)
    if problems:  # the steps behind it need what it makes
        restore(kept, recipe)
        run(step.command, recipe)
    return problems


def fill_recipe(recipe: Path, data_dir: Path) -> None:
    """Data of a Kaldi directory, configurations, files to transcribe."""
    tables = {name: read_table(data_dir / name) for name in ("wav.scp", "text", "utt2spk")}
    keys = iter(sorted(tables["wav.scp"]))
    for name, count in SETS.items():
        chosen = [*islice(keys, count)]
        for table, entries in tables.items():
            write_table(recipe / "own" / name / table, {key: entries[key] for key in chosen})
    (recipe / "audio").mkdir()
    for key in chosen[:3]:
        path = Path(tables["wav.scp"][key])
        (recipe / "audio" / path.name).symlink_to(path.resolve())
    (recipe / "conf").mkdir()
    (recipe / "conf" / "train.yaml").write_text(TRAINING)
    (recipe / "conf" / "decode.yaml").write_text(DECODING)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's options."""
    parser.add_argument("--whisper", required=True, help="hub name, folder or .pt file")
    parser.add_argument("--data_dir", type=Path, required=True, help="a Kaldi directory of files")
    parser.add_argument("--parts", type=float, nargs="+", default=[0.3, 0.8], help="of its room")
    parser.add_argument("--steps", default="", help="only those whose name holds this")
    parser.add_argument("--log", type=Path, default=Path("full_disk.log"), help="what was said")
    parser.add_argument("--table", type=Path, help="gets a row (.md)")


def check(args: argparse.Namespace) -> tuple[str, bool]:
    """Return the result in one sentence, and whether it is right."""
    tried, problems = [], []
    args.log.unlink(missing_ok=True)
    with small_disk() as disk, tempfile.TemporaryDirectory() as name:
        fill_recipe(make_recipe(disk / "recipe"), args.data_dir)
        for step in steps(args):
            kept = Path(name) / "kept"
            restore(disk / "recipe", kept)
            if args.steps not in step.name:
                run(step.command, disk / "recipe")
                continue
            tried.append(step.name)
            problems += try_step(step, disk, kept, args.parts, args.log)
    runs = len(tried) * len(args.parts)
    found = f"{runs} full disks in {len(tried)} steps ({'; '.join(tried)}): "
    return found + ("; ".join(problems) or "each said so, and went on when there was room"), (
        not problems
    )


def work(args: argparse.Namespace) -> int:
    """Fill disks and compare; the exit status."""
    if os.geteuid():  # mounting is for root, or for the root of a namespace
        alone = ["unshare", "--user", "--map-root-user", "--mount", sys.executable]
        os.execvp(alone[0], [*alone, *sys.argv])
    found, right = check(args)
    command = f"full_disk.py --parts {' '.join(f'{part:g}' for part in args.parts)}"
    row = CheckRow("full disk", found, "yes" if right else "no", command)
    return finish_check(row, args.table)


main = make_main("full_disk", __doc__, add_options, work)


if __name__ == "__main__":
    main()
