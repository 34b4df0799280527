"""Instruction sets that the kernels are compiled for, and which of them this processor has."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.options import check_choice

VARIABLE = "ESPNET_MEDUSA_CPU_ISA"
NONE = "none"  # of our own: torch's kernels


@dataclass(frozen=True)
class InstructionSet:
    """Instructions that kernels may use.

    Attributes:
        name: As the environment variable has it.
        flags: What Linux calls them.
    """

    name: str
    flags: frozenset[str]

    @property
    def options(self) -> list[str]:
        """For g++ and clang++."""
        named = [flag.replace("_", "-" * flag.startswith("amx")) for flag in self.flags]
        return [f"-m{name}" for name in sorted(named)]


def make(name: str, flags: str, lesser: Iterable[str] = ()) -> InstructionSet:
    """``flags``, and those of a lesser set."""
    return InstructionSet(name, frozenset([*lesser, *flags.split()]))


AVX2 = make("AVX2", "avx2 fma bmi2")
AVX_VNNI = make("AVX_VNNI", "avx_vnni", AVX2.flags)
AVX512_VNNI = make("AVX512_VNNI", "avx512f avx512bw avx512dq avx512vl avx512_vnni", AVX2.flags)
AVX512_BF16 = make("AVX512_BF16", "avx512_bf16", AVX512_VNNI.flags)
AMX = make("AMX", "amx_tile amx_int8 amx_bf16", AVX512_BF16.flags)
BEST_FIRST = (AMX, AVX512_BF16, AVX512_VNNI, AVX_VNNI, AVX2)


def usable_sets() -> list[InstructionSet]:
    """What kernels may run here, the best first: the processor's, or what the variable names.

    Raises:
        InputError: The variable names something else.
    """
    flags = processor_flags()
    found = [one for one in BEST_FIRST if one.flags <= flags]
    named = os.environ.get(VARIABLE)
    if not named:
        return found
    check_choice(named, [*(one.name for one in found), NONE], VARIABLE)
    return [one for one in found if one.name == named]


def processor_flags() -> set[str]:
    """What Linux says this processor can; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next((set(line.split(":")[1].split()) for line in lines if line[:5] == "flags"), set())
