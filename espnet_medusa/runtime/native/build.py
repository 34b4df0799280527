"""Compiles the kernels at first use, once for each version of them, instructions and compiler.

A library is of one set of instructions: a processor compiles what it runs, and nothing that is
compiled for a better one can get into what a lesser one runs.
"""

import ctypes
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch  # noqa: F401  its OpenMP runtime, whose threads the kernels run on

from espnet_medusa.files.cache_folder import cache_folder, check_private, make_private
from espnet_medusa.runtime.native.instruction_sets import (
    AVX2,
    NONE,
    VARIABLE,
    InstructionSet,
    processor_flags,
    usable_sets,
)

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
# Nothing is contracted that the sources do not: numbers are the same for any compiler.
COMPILE = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fopenmp", "-w")
# Not linked with OpenMP: its symbols are those that torch has loaded, not a second runtime's.
LINK = ("-shared",)
COMPILERS = ("g++", "c++", "clang++")  # OpenMP as g++ calls it is what torch brings
SECONDS = 300


class Unavailable(Exception):
    """Why there are no kernels here, in one line."""


@cache
def load_library() -> ctypes.CDLL | None:
    """The kernels; None where they cannot be, which the log then explains.

    Raises:
        InputError: The environment variable names instructions that are not there.
    """
    try:
        return open_best(usable_sets())
    except Unavailable as reason:
        logger.warning(f"torch's kernels, which are slower: {reason}")
        return None


def open_best(sets: Sequence[InstructionSet]) -> ctypes.CDLL:
    """The first of some sets' kernels that compiler and system know.

    Raises:
        Unavailable: They know none, or there is none.
    """
    if not sets:
        raise Unavailable(why_none())
    compiler, folder, reasons = find_compiler(), library_folder(cache_folder() / "kernels"), []
    for instructions in sets:
        try:
            library = open_library(compiled(instructions, compiler, folder))
        except Unavailable as reason:
            reasons.append(f"{instructions.name}: {reason}")
        else:
            logger.info("; ".join([f"kernels of our own: {instructions.name}", *reasons]))
            return library
    raise Unavailable("; ".join(reasons))


def why_none() -> str:
    """Why no set of instructions is left."""
    if os.environ.get(VARIABLE) == NONE:
        return f"{VARIABLE} is {NONE}"
    return f"this processor lacks {', '.join(sorted(AVX2.flags - processor_flags()))}"


def open_library(path: Path) -> ctypes.CDLL:
    """Load compiled kernels.

    Raises:
        Unavailable: They do not run here.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} cannot be loaded ({error})") from error
    if library.request_tiles() != 0:
        raise Unavailable("the system does not hand out the processor's AMX registers")
    return library


def library_folder(folder: Path) -> Path:
    """Where libraries are kept, made if it is not there.

    Raises:
        Unavailable: It cannot be made, or others may put libraries there, too.
    """
    try:
        make_private(folder)
    except OSError as error:
        raise Unavailable(f"kernels cannot be kept ({error})") from error
    return folder


def compiled(instructions: InstructionSet, compiler: Sequence[str], folder: Path) -> Path:
    """The library's file, made if it is not there.

    Args:
        instructions: That it uses.
        compiler: What to call.
        folder: Of ``library_folder``. Several processes may compile at once: each renames a
            complete file into place.

    Raises:
        Unavailable: The compiler fails, or somebody else may have written the file.
    """
    version = run([*compiler, "--version"])
    sources = sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cpp")])
    said = [*COMPILE, *LINK, *instructions.options, version, *compiler]
    said += [path.read_text(encoding="utf-8") for path in sources]
    key = hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]
    library = folder / f"kernels-{instructions.name}-{key}.so"
    try:
        if not library.exists():
            compile_library(compiler, instructions, library)
        check_private(library)
    except OSError as error:
        raise Unavailable(f"kernels cannot be kept ({error})") from error
    return library


def compile_library(compiler: Sequence[str], instructions: InstructionSet, library: Path) -> None:
    """Make the library in a folder of its own, then move it where it is looked for."""
    with tempfile.TemporaryDirectory(dir=library.parent) as name:
        parts, whole = Path(name, "kernels.o"), Path(name, "kernels.so")
        source = str(FOLDER / "kernels.cpp")
        run([*compiler, *COMPILE, *instructions.options, "-c", source, "-o", str(parts)])
        run([*compiler, *LINK, str(parts), "-o", str(whole)])
        whole.chmod(0o700)
        whole.replace(library)


def find_compiler() -> list[str]:
    """``CXX``, or what is usual.

    Raises:
        Unavailable: There is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    if named and shutil.which(named[0]):
        return named
    found = None if named else next(filter(shutil.which, COMPILERS), None)
    if found is None:
        raise Unavailable(f"no C++ compiler ({named[0] if named else ', '.join(COMPILERS)})")
    return [found]


def run(command: list[str]) -> str:
    """Output of a command.

    Raises:
        Unavailable: It fails.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} does not run ({error})") from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise Unavailable(f"{command[0]} fails: {said}")
    return done.stdout
