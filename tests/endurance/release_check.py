"""A release: built, checked, installed where nothing is, run, and tested.

python tests/endurance/release_check.py --folder /var/tmp/release \\
    --pythons python3.10=23 python3.13=26 --whisper whisper-tiny.en --tests tests/search tests/bin

The last commit becomes an sdist and the wheel of it; ``twine check`` reads both. Each Python gets
an environment, the newest pip of the version behind its =, and the wheel, as users install it. In
an empty folder every command then says its help, the Whisper becomes an experiment, and the
experiment transcribes speech, in int8, as the checkout does. The tests named run on the wheel: from
the commit's files without its espnet_medusa. Each pair writes its row of the table. An environment
takes 6 GB and goes away behind its check; --folder keeps the wheel and what all commands said. Exit
status 1: something was wrong.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import harness  # noqa: F401  makes tests/support importable
import soundfile
from harness.checks_table import CheckRow, finish_check
from spoken import RATE_HZ, say
from tiny_whisper import save_tiny_whisper

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("checks.md")
PYTHONS = ("python3.10=23", "python3.11=24", "python3.12=25", "python3.13=26")
SENTENCE = "the birds are singing in the old garden behind the house"
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # which would lead back to the checkout
PYTHON_VERSION = "import platform; print(platform.python_version())"
VERSIONS = """from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "espnet")))"""


class Failed(Exception):
    """What is wrong with a release."""


@dataclass(frozen=True)
class Shell:
    """Runs commands and keeps what they say."""

    programs: Path  # folder that commands are looked for in first
    folder: Path  # to run in
    log: Path  # file that everything is appended to

    def run(self, *command: str | Path, **variables: str) -> str:
        """What a command writes to stdout and stderr.

        Raises:
            Failed: Its exit status is not 0; says its last error.
        """
        words = [str(word) for word in command]
        kept = {name: value for name, value in os.environ.items() if name not in OURS}
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            words, cwd=self.folder, env=kept | {"PATH": path} | variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(words)}\n{done.stdout}\n")
        if done.returncode != 0:
            raise Failed(f"{' '.join(words[:2])}: {last_error(done.stdout)}")
        return done.stdout.strip()

    @contextmanager
    def in_empty_folder(self) -> Iterator["Shell"]:
        """The same in a folder with nothing in it, which goes away."""
        folder = self.folder / "empty"
        folder.mkdir()
        try:
            yield replace(self, folder=folder)
        finally:
            shutil.rmtree(folder)


@dataclass(frozen=True)
class Release:
    """What every Python is given."""

    wheel: Path  # to install
    files: Path  # the commit's, without the package
    whisper: Path  # to convert
    audio: Path  # file of speech
    text: str  # of this speech, as the checkout hears it


def last_error(output: str) -> str:
    """The last line of an output that speaks of an error, else its last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["said nothing"]
    return next((line for line in reversed(lines) if re.search("error", line, re.I)), lines[-1])


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel of the last commit, and the commit's files without the package.

    Raises:
        Failed: It cannot be built, or twine refuses it.
    """
    files, dist = folder / "files", folder / "dist"
    shell = Shell(folder / "tools" / "bin", folder, folder / "build.log")
    shell.run("git", "-C", ROOT, "archive", "--prefix=files/", "-o", folder / "files.tar", "HEAD")
    shell.run("tar", "-xf", "files.tar")
    shell.run(sys.executable, "-m", "venv", "tools")
    shell.run("pip", "install", "build", "twine")
    shell.run("python", "-m", "build", "--outdir", dist, files)
    shell.run("twine", "check", "--strict", *dist.iterdir())
    shutil.rmtree(files / "espnet_medusa")
    (wheel,) = dist.glob("*.whl")
    return wheel, files


def transcribe(shell: Shell, whisper: Path, audio: Path, **variables: str) -> str:
    """What a Whisper hears as an experiment in int8, its kernels compiled anew.

    Args:
        shell: Its folder gets all that is written.

    Raises:
        Failed: A command fails.
    """
    variables |= {"XDG_CACHE_HOME": str(shell.folder / "cache"), "HF_HUB_OFFLINE": "1"}
    shell.run("espnet-medusa-convert", whisper, "exp", "--language", "en", **variables)
    options = ("--model", "exp", "--decoder_precision", "int8", "--output_dir", "out")
    shell.run("espnet-medusa-transcribe", audio, *options, **variables)
    return (shell.folder / "out" / "text").read_text(encoding="utf-8").strip()


def prepare(folder: Path, whisper: Path | None) -> Release:
    """Build, and transcribe with the checkout.

    Args:
        whisper: To convert; None: a random one.

    Raises:
        Failed: It cannot be built, or the checkout itself fails.
    """
    wheel, files = build(folder)
    audio = folder / "speech.wav"
    soundfile.write(audio, say(SENTENCE), RATE_HZ)
    whisper = whisper.resolve() if whisper else save_tiny_whisper(folder / "whisper")
    ours = Shell(Path(sys.executable).parent, folder, folder / "build.log")
    with ours.in_empty_folder() as shell:
        text = transcribe(shell, whisper, audio, PYTHONPATH=str(ROOT))
    return Release(wheel, files, whisper, audio, text)


def install(shell: Shell, python: str, pip: str, wheel: Path) -> str:
    """An environment with the newest pip of a version, and the wheel; what it got.

    Raises:
        Failed: pip refuses.
    """
    began = time.monotonic()
    shell.run(python, "-m", "venv", shell.programs.parent)
    shell.run("python", "-m", "pip", "install", f"pip=={pip}.*")
    shell.run("pip", "install", wheel)
    minutes = (time.monotonic() - began) / 60
    return f"{shell.run('python', '-c', VERSIONS)}, in {minutes:.0f} minutes"


def use(shell: Shell, release: Release) -> str:
    """Run what the wheel installed, in an empty folder; what there was to see.

    Raises:
        Failed: A command fails, or the text is another than the checkout's.
    """
    with shell.in_empty_folder() as outside:
        outside.run("python", "-c", "import espnet_medusa")
        commands = sorted(path.name for path in shell.programs.glob("espnet-medusa-*"))
        for command in commands:
            outside.run(command, "--help")
        text = transcribe(outside, release.whisper, release.audio)
    if text != release.text:
        raise Failed(f"transcribed {text!r}, the checkout wrote {release.text!r}")
    return f"{len(commands)} commands; the checkout's text"


def run_tests(shell: Shell, release: Release, patterns: Sequence[str]) -> str:
    """Run tests on the wheel; pytest's last line.

    Raises:
        Failed: A test fails.
    """
    shell.run("pip", "install", f"{release.wheel}[demo,test]")
    beside = replace(shell, folder=release.files)
    pytest = ("python", "-m", "pytest", "-p", "no:cacheprovider", *patterns)
    return beside.run(*pytest, OMP_NUM_THREADS="1").splitlines()[-1]


def check(release: Release, folder: Path, pair: str, patterns: Sequence[str]) -> CheckRow:
    """How far a Python with a pip goes.

    Args:
        pair: ``PYTHON=PIP``.
    """
    python, _, pip = pair.rpartition("=")
    number = subprocess.check_output([python, "-c", PYTHON_VERSION], text=True).strip()
    name = f"release: Python {number}, pip {pip}"
    venv = folder / f"python{number}"
    shell = Shell(venv / "bin", folder, folder / f"python{number}-pip{pip}.log")
    found, right = [], "yes"
    try:
        found.append(install(shell, python, pip, release.wheel))
        found.append(use(shell, release))
        if patterns:
            found.append(run_tests(shell, release, patterns))
    except Failed as failure:
        right = str(failure)
    finally:
        shutil.rmtree(venv, ignore_errors=True)
    tests = ["--tests", *patterns] if patterns else []
    return CheckRow(name, "; ".join(found), right, shlex.join(["release_check.py", *tests]))


def check_pythons(pairs: Sequence[str]) -> None:
    """Whether each is a Python that is here, and a pip.

    Raises:
        InputError: One is not.
    """
    for pair in pairs:
        python, _, pip = pair.rpartition("=")
        if not pip.isdecimal() or not shutil.which(python):
            raise InputError(f"--pythons {pair}: PYTHON=PIP is needed, of a Python that is here")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's options."""
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, help="PYTHON=PIP")
    parser.add_argument("--whisper", type=Path, help="to convert; default: a random one")
    parser.add_argument("--tests", nargs="+", default=[], help="files and folders of tests")
    parser.add_argument("--folder", type=Path, required=True, help="new, to work in")
    parser.add_argument("--table", type=Path, default=TABLE, help="table that gets the rows (.md)")


def work(args: argparse.Namespace) -> int:
    """Check them one after the other; the exit status."""
    check_pythons(args.pythons)
    folder = args.folder.absolute()
    folder.mkdir(parents=True)
    wrong = 0
    try:
        release = prepare(folder, args.whisper)
    except Failed as failure:
        print(f"{failure}; see {folder / 'build.log'}")
        return 1
    for pair in args.pythons:
        row = check(release, folder, pair, args.tests)
        print(row.check)
        wrong += finish_check(row, args.table)
    return int(wrong > 0)


main = make_main("release_check", __doc__, add_options, work)


if __name__ == "__main__":
    main()
