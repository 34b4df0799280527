"""Compiles the kernels at first use, once for each version of them, processor and compiler."""

import ctypes
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch  # noqa: F401  its OpenMP runtime, whose threads the kernels run on

from espnet_medusa.cache_folder import cache_folder

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
NEEDED = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
COMPILE = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fopenmp", "-w")
# Not linked with OpenMP: its symbols are those that torch has loaded, not a second runtime's.
LINK = ("-shared",)
COMPILERS = ("g++", "c++", "clang++")  # OpenMP as g++ calls it is what torch brings
SECONDS = 300


class Unavailable(Exception):
    """Why there are no kernels here, in one line."""


@cache
def load_library() -> ctypes.CDLL | None:
    """The kernels; None where they cannot be, which the log then explains."""
    try:
        library = open_library(compiled(cache_folder()))
    except Unavailable as reason:
        logger.warning(f"torch's kernels, which are slower: {reason}")
        return None
    logger.info(f"kernels of our own: {library.kind().decode()}")
    return library


def open_library(path: Path) -> ctypes.CDLL:
    """Load compiled kernels.

    Raises:
        Unavailable: They do not run here.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} cannot be loaded ({error})") from error
    library.kind.restype = ctypes.c_char_p
    if library.request_tiles() != 0:
        raise Unavailable("the system does not hand out the processor's AMX registers")
    return library


def compiled(folder: Path) -> Path:
    """The library's file, made if it is not there.

    Args:
        folder: Where libraries are kept. Several processes may compile at once: each renames a
            complete file into place.

    Raises:
        Unavailable: Instructions or compiler are missing, or it fails.
    """
    flags = processor_flags()
    if missing := sorted(NEEDED - flags):
        raise Unavailable(f"this processor lacks {', '.join(missing)}")
    compiler = find_compiler()
    version = run([*compiler, "--version"])
    sources = sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cpp")])
    said = [*COMPILE, *LINK, *sorted(flags), version, *compiler]
    said += [path.read_text(encoding="utf-8") for path in sources]
    key = hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]
    library = folder / f"kernels-{key}.so"
    if not library.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            compile_library(compiler, library)
        except OSError as error:
            raise Unavailable(f"{folder} cannot be written ({error})") from error
    return library


def compile_library(compiler: list[str], library: Path) -> None:
    """Make the library in a folder of its own, then move it where it is looked for."""
    with tempfile.TemporaryDirectory(dir=library.parent) as name:
        parts, whole = Path(name, "kernels.o"), Path(name, "kernels.so")
        run([*compiler, *COMPILE, "-c", str(FOLDER / "kernels.cpp"), "-o", str(parts)])
        run([*compiler, *LINK, str(parts), "-o", str(whole)])
        whole.replace(library)


def processor_flags() -> set[str]:
    """What Linux says this processor can; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next((set(line.split(":")[1].split()) for line in lines if line[:5] == "flags"), set())


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
