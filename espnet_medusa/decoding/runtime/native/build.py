"""Compile and load the native kernels for this processor's instruction set.

Kernels are compiled at first use and cached per version of the sources, compiler and instruction
set. Each library is compiled for one instruction set, so that code for a newer processor cannot
end up in the library of an older one.
"""

import ctypes
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch  # noqa: F401  loads the OpenMP runtime that the kernels use

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.cache_folder import check_private, in_cache, make_private
from espnet_medusa.data.options import check_choice

logger = logging.getLogger(__name__)

VARIABLE = "ESPNET_MEDUSA_CPU_ISA"
INTEL = "GenuineIntel"
NONE = "none"  # disables the native kernels
FOLDER = Path(__file__).parent
# -ffp-contract=off: results do not depend on the compiler.
COMPILE = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fopenmp", "-w")
LINK = ("-shared",)  # not with OpenMP: its symbols come from the runtime that torch has loaded
COMPILERS = ("g++", "c++", "clang++")  # g++ first: torch ships GNU's OpenMP
TIMEOUT_S = 300


class Unavailable(Exception):
    """Native kernels cannot be used; the message is the reason, in one line."""


class Uncached(Unavailable):
    """The kernels' folder cannot be used; the cause is an OSError."""


def _uncached(error: Exception) -> Uncached:
    return Uncached(f"kernels cannot be cached ({error})")


@dataclass(frozen=True)
class InstructionSet:
    name: str  # value of the environment variable
    flags: frozenset[str]  # names in ``/proc/cpuinfo``

    @property
    def options(self) -> list[str]:
        """Options of g++ and clang++."""
        names = [flag.replace("_", "-" * flag.startswith("amx")) for flag in self.flags]
        return [f"-m{name}" for name in sorted(names)]


AVX2 = InstructionSet("AVX2", frozenset(["avx2", "fma", "bmi2"]))
AVX_VNNI = InstructionSet("AVX_VNNI", AVX2.flags | {"avx_vnni"})
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
AVX512_VNNI = InstructionSet("AVX512_VNNI", AVX2.flags | AVX512 | {"avx512_vnni"})
AVX512_BF16 = InstructionSet("AVX512_BF16", AVX512_VNNI.flags | {"avx512_bf16"})
AMX = InstructionSet("AMX", AVX512_BF16.flags | {"amx_tile", "amx_int8", "amx_bf16"})
BEST_FIRST = (AMX, AVX512_BF16, AVX512_VNNI, AVX_VNNI, AVX2)


def usable_sets() -> list[InstructionSet]:
    """Return usable sets, best first, or only the one in ``VARIABLE``; may raise InputError."""
    flags = processor_flags()
    usable = [candidate for candidate in BEST_FIRST if candidate.flags <= flags]
    # Intel's bfloat16 vector instruction computes half as many products per second as float32's.
    usable.sort(key=lambda candidate: candidate == AVX512_BF16 and INTEL in flags)
    name = os.environ.get(VARIABLE)
    if not name:
        return usable
    check_choice(name, [*(candidate.name for candidate in usable), NONE], VARIABLE)
    return [candidate for candidate in usable if candidate.name == name]


def processor_flags() -> set[str]:
    """Return vendor and flags in ``/proc/cpuinfo``; none on other systems than Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    first, *_ = text.split("\n\n")  # of several processors
    return set(" ".join(re.findall(r"^(?:vendor_id|flags)\s*:(.*)", first, re.M)).split())


@cache
def load_library() -> ctypes.CDLL | None:
    """Return the loaded kernels, or None and log the reason; errors as ``usable_sets``."""
    try:
        return open_best(usable_sets())
    except Unavailable as reason:
        logger.warning(f"using torch's kernels, which are slower: {reason}")
        return None


def open_best(sets: Sequence[InstructionSet]) -> ctypes.CDLL:
    """Return the kernels of the first set that works; raise Unavailable if there is none."""
    if not sets and os.environ.get(VARIABLE) == NONE:
        raise Unavailable(f"{VARIABLE} is {NONE}")
    if not sets:
        missing = ", ".join(sorted(AVX2.flags - processor_flags()))
        raise Unavailable(f"this processor lacks {missing}")
    compiler = find_compiler()

    def open_in(folder: Path) -> ctypes.CDLL:
        try:
            return _open_best_in(library_folder(folder), sets, compiler)
        except Uncached as error:
            raise error.__cause__ from None

    try:
        return in_cache("kernels", open_in)
    except (OSError, InputError) as error:
        raise _uncached(error) from error


def _open_best_in(
    folder: Path, sets: Sequence[InstructionSet], compiler: Sequence[str]
) -> ctypes.CDLL:
    reasons = []
    for instructions in sets:
        try:
            library = open_library(compiled(instructions, compiler, folder))
        except Uncached:
            raise
        except Unavailable as reason:
            reasons.append(f"{instructions.name}: {reason}")
        else:
            logger.info("; ".join([f"native kernels: {instructions.name}", *reasons]))
            return library
    raise Unavailable("; ".join(reasons))


def open_library(path: Path) -> ctypes.CDLL:
    """Load a compiled library; raise Unavailable if it does not run on this system."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} cannot be loaded ({error})") from error
    if library.request_tiles() != 0:
        raise Unavailable("the system does not permit the use of AMX registers")
    return library


def library_folder(folder: Path) -> Path:
    """Create a private folder of libraries; raise Unavailable if that is impossible."""
    try:
        make_private(folder)
    except OSError as error:
        raise _uncached(error) from error
    return folder


def compiled(instructions: InstructionSet, compiler: Sequence[str], folder: Path) -> Path:
    """Return the library's file; compile it if it is missing, or raise Unavailable.

    Several processes may compile at the same time: each moves a complete file into place.
    """
    version = run([*compiler, "--version"])
    sources = sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cpp")])
    options = [*COMPILE, *instructions.options]
    if INTEL not in processor_flags():
        options.append("-DPREFETCH_TO_L2")
    inputs = [*options, *LINK, version, *compiler]
    inputs += [path.read_text(encoding="utf-8") for path in sources]
    key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    library = folder / f"kernels-{instructions.name}-{key}.so"
    try:
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=folder) as name:
                object_file, linked = Path(name, "kernels.o"), Path(name, "kernels.so")
                run([*compiler, *options, "-c", FOLDER / "kernels.cpp", "-o", object_file])
                run([*compiler, *LINK, object_file, "-o", linked])
                linked.chmod(0o700)
                linked.replace(library)
        check_private(library)
    except OSError as error:
        raise _uncached(error) from error
    return library


def find_compiler() -> list[str]:
    """Return the command in ``CXX``, or an installed compiler; raise Unavailable without one."""
    command = shlex.split(os.environ.get("CXX", ""))
    compilers = [command] if command else [[name] for name in COMPILERS]
    for compiler in compilers:
        if shutil.which(compiler[0]):
            return compiler
    raise Unavailable(f"no C++ compiler ({', '.join(compiler[0] for compiler in compilers)})")


def run(command: Sequence[str | Path]) -> str:
    """Return the output of a command; raise Unavailable if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} does not run ({error})") from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise Unavailable(f"{command[0]} fails: {reason}")
    return done.stdout
