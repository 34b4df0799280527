"""Build a release, check it, install it in empty environments, run and test it.

python tests/endurance/release_check.py --folder /var/tmp/release \\
    --pythons python3.10=23 python3.13=26 --whisper whisper-tiny.en --tests tests/bin

Builds an sdist of the last commit and the sdist's wheel; ``twine check`` reads both. Each Python
gets an environment, the newest pip of version PIP (PYTHON=PIP) and the wheel, as users install it.
In an empty folder every command then prints its help, the Whisper is converted to an experiment,
and the experiment transcribes speech, in int8, as the checkout does. The given tests run on the
wheel, from the commit's files without its espnet_medusa. Each pair writes its row of the table. An
environment takes 6 GB and is removed after its check; --folder keeps the wheel and all output. Exit
status 1: something was wrong.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import soundfile
from harness import ROOT, CheckRow, finish_check
from tiny_whisper import save_tiny_whisper
from tones import RATE_HZ, say

from espnet_medusa.data.command_line import make_main
from espnet_medusa.data.errors import InputError

TABLE = Path(__file__).with_name("checks.md")
PYTHONS = ("python3.10=23", "python3.11=24", "python3.12=25", "python3.13=26")
SENTENCE = "the birds are singing in the old garden behind the house"
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # they would select the checkout
PYTHON_VERSION = "import platform; print(platform.python_version())"
VERSIONS = """from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "espnet")))"""


class Failed(Exception):
    """A release fails a check."""


@dataclass(frozen=True)
class Shell:
    programs: Path  # first folder of PATH
    folder: Path  # to run in
    log: Path  # file that everything is appended to

    def run(self, *command: str | Path, **variables: str) -> str:
        """Run a command and return its output; raise Failed if its exit status is not 0."""
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


@dataclass(frozen=True)
class Release:
    wheel: Path  # to install
    files: Path  # the commit's, without the package
    whisper: Path  # to convert
    audio: Path  # file of speech
    text: str  # of this speech, by the checkout


def last_error(output: str) -> str:
    """Return the last line of an output that contains "error", else its last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    return next((line for line in reversed(lines) if re.search("error", line, re.I)), lines[-1])


def build(folder: Path) -> tuple[Path, Path]:
    """Return the last commit's wheel, and its files without the package; may raise Failed."""
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
    """Convert a Whisper and transcribe in int8, with newly compiled kernels."""
    variables |= {"XDG_CACHE_HOME": str(shell.folder / "cache"), "HF_HUB_OFFLINE": "1"}
    shell.run("espnet-medusa-convert", whisper, "exp", "--language", "en", **variables)
    options = ("--model", "exp", "--decoder_precision", "int8", "--output_dir", "out")
    shell.run("espnet-medusa-transcribe", audio, *options, **variables)
    return (shell.folder / "out" / "text").read_text(encoding="utf-8").strip()


def prepare(folder: Path, whisper: Path | None) -> Release:
    """Build the release, and transcribe with the checkout; ``whisper`` None: a random one."""
    wheel, files = build(folder)
    audio = folder / "speech.wav"
    soundfile.write(audio, say(SENTENCE), RATE_HZ)
    whisper = whisper.resolve() if whisper else save_tiny_whisper(folder / "whisper")
    ours = Shell(Path(sys.executable).parent, folder, folder / "build.log")
    with tempfile.TemporaryDirectory(dir=folder) as empty:
        text = transcribe(replace(ours, folder=Path(empty)), whisper, audio, PYTHONPATH=str(ROOT))
    return Release(wheel, files, whisper, audio, text)


def install(shell: Shell, python: str, pip: str, wheel: Path) -> str:
    """Install the wheel by the newest pip of a version; return versions and minutes."""
    began = time.monotonic()
    shell.run(python, "-m", "venv", shell.programs.parent)
    shell.run("python", "-m", "pip", "install", f"pip=={pip}.*")
    shell.run("pip", "install", wheel)
    minutes = (time.monotonic() - began) / 60
    return f"{shell.run('python', '-c', VERSIONS)}, in {minutes:.0f} minutes"


def use(shell: Shell, release: Release) -> str:
    """Run the installed commands; raise Failed if the text differs from the checkout's."""
    with tempfile.TemporaryDirectory(dir=shell.folder) as empty:
        outside = replace(shell, folder=Path(empty))
        outside.run("python", "-c", "import espnet_medusa")
        commands = sorted(path.name for path in shell.programs.glob("espnet-medusa-*"))
        for command in commands:
            outside.run(command, "--help")
        text = transcribe(outside, release.whisper, release.audio)
        if text != release.text:
            raise Failed(f"transcribed {text!r}, the checkout wrote {release.text!r}")
        outside.run("espnet-medusa-recipe", "mini_synth", "copied")
        if not Path(empty, "copied/egs/mini_synth/demo/local/data.sh").is_file():
            raise Failed("the copied recipe lacks its links")
    return f"{len(commands)} commands; same text as the checkout"


def check(release: Release, folder: Path, pair: str, patterns: Sequence[str]) -> CheckRow:
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
            shell.run("pip", "install", f"{release.wheel}[demo,test]")
            tests = "python", "-m", "pytest", "-p", "no:cacheprovider", *patterns
            output = replace(shell, folder=release.files).run(*tests, OMP_NUM_THREADS="1")
            found.append(output.splitlines()[-1])
    except Failed as failure:
        right = str(failure)
    finally:
        shutil.rmtree(venv, ignore_errors=True)
    command = ["release_check.py", *(["--tests", *patterns] if patterns else [])]
    return CheckRow(name, "; ".join(found), right, shlex.join(command))


def check_pythons(pairs: Sequence[str]) -> None:
    """Raise InputError if a pair is no ``PYTHON=PIP`` with an installed Python."""
    for pair in pairs:
        python, _, pip = pair.rpartition("=")
        if not pip.isdecimal() or not shutil.which(python):
            raise InputError(f"--pythons {pair}: PYTHON=PIP is needed, with an installed Python")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, help="PYTHON=PIP")
    parser.add_argument("--whisper", type=Path, help="to convert; default: a random one")
    parser.add_argument("--tests", nargs="+", default=[], help="files and folders of tests")
    parser.add_argument("--folder", type=Path, required=True, help="new, to work in")
    parser.add_argument("--table", type=Path, default=TABLE, help="table that gets the rows (.md)")


def work(args: argparse.Namespace) -> int:
    check_pythons(args.pythons)
    folder = args.folder.absolute()
    folder.mkdir(parents=True)
    try:
        release = prepare(folder, args.whisper)
    except Failed as failure:
        print(f"{failure}; see {folder / 'build.log'}")
        return 1
    statuses = []
    for pair in args.pythons:
        row = check(release, folder, pair, args.tests)
        print(row.check)
        statuses.append(finish_check(row, args.table))
    return max(statuses)


main = make_main("release_check", __doc__, add_options, work)


if __name__ == "__main__":
    main()
