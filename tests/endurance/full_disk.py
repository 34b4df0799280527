"""Fill the disk in the middle of each stage; check the error and the next run.

python tests/endurance/full_disk.py --whisper openai/whisper-tiny.en --data_dir data/test_clean \\
    --table tests/endurance/checks.md

The recipe is on a small disk in memory (tmpfs; without root in a user namespace, by unshare).
Before each step the disk gets room for a part of what the step writes. The step must end with an
exit status other than 0, a line that names a file and states that the disk is full or too small,
and no traceback. With enough room the same command must then succeed, with the files of an
undisturbed run. Exit status 1: a step does otherwise; its output is printed.
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
from itertools import islice
from pathlib import Path

import harness
from harness import run
from recipes import TRAINING

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import read_table

ROOMY, PAGE = 4 << 30, 4096
FULL = "No space left on device"
TOO_SMALL = "GB are free; name a folder on another disk"  # before anything is written
# Numbers in JSON files: their last digits depend on where arrays are in memory.
NUMBER = re.compile(rb"-?\d+\.\d{6,}")
NAMES_A_FILE = re.compile(r"[\w.~-]*/[\w./~-]+|\w+\.\w+")
DECODING = "beam_size: 2\nctc_weight: 0.3\nmaxlenratio: -4\n"
# Files with seconds, dates or random names.
VOLATILE = re.compile(
    r"\.log$|\.stamp\.json$|statistics\.json$|decoding\.json$|RESULTS\.md$|journal\.jsonl$|"
    r"\.zip$|checkpoint\.pth$|images/|tensorboard"
)
STAGES = {3: "format", 5: "tokens", 10: "statistics", 11: "training", 12: "decoding", 13: "scoring",
          14: "packing"}  # fmt: skip


def steps(whisper: str) -> dict[str, list[str]]:
    """Return commands that write, by name, in the order in which they depend on each other."""
    asr = ["./asr.sh", "--data_dir", "own", "--train_set", "train", "--valid_set", "dev"]
    asr += ["--test_sets", "test", "--ngpu", "0", "--nj", "1", "--inference_nj", "1"]
    asr += ["--token_type", "char", "--asr_config", "conf/train.yaml", "--asr_exp", "exp/asr"]
    asr += ["--inference_config", "conf/decode.yaml", "--asr_stats_dir", "exp/stats"]
    asr += ["--max_wav_duration", "30", "--skip_packing", "false"]
    corpus = ["python3", str(harness.MINI_SYNTH / "local/make_corpus.py"), "--output_dir", "spoken"]
    corpus += ["--minutes", "0.5", "--dev_utterances", "2", "--test_utterances", "2"]
    module = ["python3", "-m"]
    commands = {"stage 1, mini_synth": corpus}
    for stage, name in STAGES.items():
        stages = ["--stage", str(stage), "--stop_stage", str(max(stage, 4))]
        commands[f"stage {stage}, {name}"] = [*asr, *stages]
    return commands | {
        "convert": [*module, "espnet_medusa.bin.convert", whisper, "exp/whisper"],
        "cache_states": [*module, "espnet_medusa.bin.stage", "cache_states", "--exp_dir",
            "exp/whisper", "--data_dir", "dump/raw/test", "--output_dir", "states"],
        "transcribe": [*module, "espnet_medusa.bin.transcribe", "audio", "--model", "exp/whisper",
            "--output_format", "all"],
    }  # fmt: skip


@contextmanager
def small_disk() -> Iterator[Path]:
    """Yield a folder in memory, roomy at first; raise InputError if this machine refuses it."""
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
    subprocess.run(["mount", "-o", f"remount,size={max(size, PAGE)}", str(disk)], check=True)


def used(disk: Path) -> int:
    facts = os.statvfs(disk)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def contents(folder: Path) -> dict[str, bytes]:
    """Return files by path, volatile ones without bytes, numbers of JSON with four decimals."""
    found = harness.contents(folder, VOLATILE)
    for name in found:
        if name.endswith(".json"):
            found[name] = NUMBER.sub(lambda number: b"%.4f" % float(number[0]), found[name])
    return found


def restore(kept: Path, recipe: Path) -> None:
    shutil.rmtree(recipe, ignore_errors=True)
    shutil.copytree(kept, recipe, symlinks=True)


def problems_of_message(done: subprocess.CompletedProcess[str]) -> list[str]:
    shown = (done.stdout + done.stderr).splitlines()
    problems = [] if done.returncode else ["status 0"]
    named = any(NAMES_A_FILE.search(line.replace(FULL, "")) for line in shown if FULL in line)
    if not named and not any(TOO_SMALL in line for line in shown):
        problems.append("no line names a file and states that the disk is full")
    if any(line.startswith("Traceback") for line in shown):
        problems.append("a traceback")
    return problems


def try_step(
    name: str, command: list[str], disk: Path, kept: Path, parts: Sequence[float]
) -> list[str]:
    """Run a step undisturbed, then on full disks; return problems. May raise InputError."""
    recipe = disk / "recipe"
    before = used(disk)
    harness.run_to_end(name, command, recipe)
    expected, grown = contents(recipe), used(disk) - before
    problems = []
    for part in parts:
        resize(disk, ROOMY)
        restore(kept, recipe)
        resize(disk, used(disk) + int(part * grown) // PAGE * PAGE)
        done = run(command, recipe)
        resize(disk, ROOMY)
        new = problems_of_message(done)
        again = run(command, recipe)
        if again.returncode:
            new.append(f"then status {again.returncode}")
        else:
            new += [f"{file} differs" for file in harness.differing(contents(recipe), expected)]
        if new:
            print(done.stdout, done.stderr, again.stdout, again.stderr, sep="\n---\n")
        problems += [f"{name} at {part:g}: {problem}" for problem in new]
    print(f"{name}: {grown // PAGE} pages; problems: {problems}", flush=True)
    if problems:  # the next steps need the files of this step
        restore(kept, recipe)
        run(command, recipe)
    return problems


def fill_recipe(recipe: Path, data_dir: Path) -> None:
    tables = {name: read_table(data_dir / name) for name in harness.TABLES}
    keys = iter(sorted(tables["wav.scp"]))
    for name, count in {"train": 40, "dev": 6, "test": 6}.items():
        chosen = [*islice(keys, count)]
        harness.write_tables(recipe / "own" / name, tables, chosen)
    (recipe / "audio").mkdir()
    for key in chosen[:3]:
        path = Path(tables["wav.scp"][key])
        (recipe / "audio" / path.name).symlink_to(path.resolve())
    (recipe / "conf").mkdir()
    (recipe / "conf" / "train.yaml").write_text(TRAINING)
    (recipe / "conf" / "decode.yaml").write_text(DECODING)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--whisper", required=True, help="hub name, folder or .pt file")
    parser.add_argument("--data_dir", type=Path, required=True, help="a Kaldi directory of files")
    help_text = "free space during a step, as shares of what the step writes"
    parser.add_argument("--parts", type=float, nargs="+", default=[0.3, 0.8], help=help_text)


def check(args: argparse.Namespace, folder: Path) -> tuple[str, str]:
    if os.geteuid():  # only root can mount, here or in a namespace
        alone = ["unshare", "--user", "--map-root-user", "--mount", sys.executable]
        raise SystemExit(subprocess.call([*alone, *sys.argv]))
    problems = []
    commands = steps(args.whisper)
    with small_disk() as disk:
        fill_recipe(harness.make_recipe(disk / "recipe"), args.data_dir)
        for name, command in commands.items():
            restore(disk / "recipe", folder / "kept")
            problems += try_step(name, command, disk, folder / "kept", args.parts)
    runs = len(commands) * len(args.parts)
    figures = f"{runs} full disks in {len(commands)} steps ({'; '.join(commands)}): "
    right = "each printed an error with a file's name; the next run completed"
    return figures + ("; ".join(problems) or right), "no" if problems else ""


main = harness.make_check("full disk", __file__, __doc__, add_options, check)


if __name__ == "__main__":
    main()
