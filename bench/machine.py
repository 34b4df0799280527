"""What this machine is and can do: its name, versions, GPU, memory bandwidth and GEMM rates."""

import os
import re
import subprocess
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path

import torch

from espnet_medusa.files.output_folder import fingerprint
from espnet_medusa.tuning.report import machine_name as device_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "torch", "transformers", "ctranslate2", "faster-whisper", "openai-whisper", "espnet",
)  # fmt: skip
VECTOR = 64 * 2**20  # elements of copy and triad: far beyond any cache
GEMV_SIZE, GEMM_SIZE = 8192, 2048
GIGA = 1e9
SMI_SECONDS = 20.0
# What nvidia-smi says of a GPU: its own names of it, and what figures depend on.
GPU_FACTS = {
    "driver": "driver_version",
    "memory": "memory.total",
    "performance state": "pstate",
    "clock": "clocks.sm",
    "highest clock": "clocks.max.sm",
    "memory clock": "clocks.mem",
    "power limit": "power.limit",
    "temperature [C]": "temperature.gpu",
    "throttled by": "clocks_throttle_reasons.active",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FLOATS = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "bfloat16", "float16")}


def machine_name(device: str) -> str:
    """A folder's name: processor and cores, or the GPU."""
    cores = "" if device == "cuda" else f" {os.cpu_count()} cores"
    return _slug(device_name(torch.device(device)) + cores)


def code_version() -> str:
    """A digest of the package, its tests and the benchmarks."""
    folders = (ROOT / name for name in ("espnet_medusa", "tests", "bench"))
    files = (path for folder in folders for suffix in ("py", "h", "cpp")
             for path in folder.rglob(f"*.{suffix}"))  # fmt: skip
    return fingerprint(sorted(files), [], {})


def describe_machine(device: str, threads: int) -> dict:
    """What figures were measured on and with."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": device_name(torch.device("cpu")),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": threads,
        "versions": versions,
    }


def describe_gpu() -> dict[str, str]:
    """CUDA's version and what nvidia-smi says of the GPU that torch computes on, as it says it."""
    facts = {"CUDA": str(torch.version.cuda)}
    name = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    for fact, field in GPU_FACTS.items():
        # One by one: drivers differ in what they know, and one unknown name spoils a query.
        command = ["nvidia-smi", f"--id={name}", f"--query-gpu={field}", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            break
        if done.returncode == 0:
            facts[fact] = done.stdout.strip()
    return facts


@torch.no_grad()
def measure_machine(device: str, threads: int) -> dict:
    """Memory bandwidth in GB/s and matrix product rates in GFLOP/s, the best of several runs."""
    torch.set_num_threads(threads)
    source, other, target = (torch.ones(VECTOR, device=device) for _ in range(3))
    size = source.nbytes / GIGA
    bandwidth = {
        "copy": 2 * size / best_seconds(partial(target.copy_, source), device),
        "triad": 3 * size / best_seconds(
            partial(torch.add, source, other, alpha=3.0, out=target), device
        ),
    }  # fmt: skip
    rates = {}
    for name in FLOATS[device]:
        weight = torch.ones(GEMV_SIZE, GEMV_SIZE, dtype=DTYPES[name], device=device)
        vector = torch.ones(1, GEMV_SIZE, dtype=DTYPES[name], device=device)
        seconds = best_seconds(partial(torch.nn.functional.linear, vector, weight), device)
        bandwidth[f"weights read, {name}"] = weight.nbytes / GIGA / seconds
        square = torch.ones(GEMM_SIZE, GEMM_SIZE, dtype=DTYPES[name], device=device)
        rates[name] = _gemm_rate(partial(torch.matmul, square, square), device)
    square = torch.ones(GEMM_SIZE, GEMM_SIZE, dtype=torch.int8, device=device)
    rates["int8"] = _gemm_rate(partial(torch._int_mm, square, square), device)
    return {"bandwidth": bandwidth, "gemm": rates, **describe_machine(device, threads)}


def wait_for(device: str) -> None:
    """Until a GPU has done all that it was asked for."""
    if device == "cuda":
        torch.cuda.synchronize()


def best_seconds(work: Callable[[], object], device: str, repeats: int = 7) -> float:
    """The shortest of several runs, after one to warm up."""
    seconds = []
    for _ in range(repeats + 1):
        wait_for(device)
        started = time.perf_counter()
        work()
        wait_for(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def _gemm_rate(work: Callable[[], object], device: str) -> float:
    return 2 * GEMM_SIZE**3 / GIGA / best_seconds(work, device)


def _slug(name: str) -> str:
    name = re.sub(r"\((r|tm)\)", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "_", name).strip("_")
