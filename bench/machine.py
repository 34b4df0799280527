"""Describe this machine: processor, GPU and versions."""

import os
import re
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch

from espnet_medusa.data.files.output_folder import digest_of_inputs
from espnet_medusa.data.processor_name import processor_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "torch", "transformers", "ctranslate2", "faster-whisper", "openai-whisper", "openvino-genai",
    "pywhispercpp", "espnet",
)  # fmt: skip
SMI_SECONDS = 20.0
# Facts of a GPU that figures depend on, with their names in nvidia-smi.
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


def machine_name(device: str) -> str:
    """Return the name of the results' folder: processor and cores, or the GPU."""
    cores = "" if device == "cuda" else f" {os.cpu_count()} cores"
    name = re.sub(r"\((r|tm)\)", "", (processor_name(torch.device(device)) + cores).lower())
    return re.sub(r"[^a-z0-9]+", "_", name).strip("_")


def code_version() -> str:
    """Return a digest of the package, its tests and the benchmarks."""
    folders = (ROOT / name for name in ("espnet_medusa", "tests", "bench"))
    files = (path for folder in folders for suffix in ("py", "h", "cpp")
             for path in folder.rglob(f"*.{suffix}"))  # fmt: skip
    return digest_of_inputs(sorted(files), [], {})


def describe_machine(device: str, threads: int) -> dict:
    """Return processor, device, threads and versions of packages."""
    versions = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "processor": processor_name(torch.device("cpu")),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": threads,
        "versions": versions,
    }


def describe_gpu() -> dict[str, str]:
    """Return the version of CUDA and nvidia-smi's facts of the GPU that torch uses."""
    facts = {"CUDA": str(torch.version.cuda)}
    name = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    for fact, field in GPU_FACTS.items():
        # One query for each: a query with a name that the driver lacks fails.
        command = ["nvidia-smi", f"--id={name}", f"--query-gpu={field}", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            break
        if done.returncode == 0:
            facts[fact] = done.stdout.strip()
    return facts


def wait_for(device: str) -> None:
    """Wait until the GPU has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()
