"""What this machine is and can do: its name, versions, memory bandwidth and GEMM rates."""

import os
import re
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata

import torch

from espnet_medusa.tuning.report import machine_name as device_name

PACKAGES = (
    "torch", "transformers", "ctranslate2", "faster-whisper", "openai-whisper", "espnet",
)  # fmt: skip
VECTOR = 64 * 2**20  # elements of copy and triad: far beyond any cache
GEMV_SIZE, GEMM_SIZE = 8192, 2048
GIGA = 1e9
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FLOATS = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "bfloat16", "float16")}


def machine_name(device: str) -> str:
    """A folder's name: processor and cores, or the GPU."""
    cores = "" if device == "cuda" else f" {os.cpu_count()} cores"
    return _slug(device_name(torch.device(device)) + cores)


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


def best_seconds(work: Callable[[], object], device: str, repeats: int = 7) -> float:
    """The shortest of several runs, after one to warm up."""
    seconds = []
    for _ in range(repeats + 1):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def _gemm_rate(work: Callable[[], object], device: str) -> float:
    return 2 * GEMM_SIZE**3 / GIGA / best_seconds(work, device)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _slug(name: str) -> str:
    name = re.sub(r"\((r|tm)\)", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "_", name).strip("_")
