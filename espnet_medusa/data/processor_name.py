"""The name of a processor or GPU, to which measured times belong."""

import platform
from functools import cache
from pathlib import Path

import torch


@cache
def processor_name(device: torch.device) -> str:
    """Return the name of a GPU, or of this machine's processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    table = Path("/proc/cpuinfo")
    lines = table.read_text(encoding="utf-8").splitlines() if table.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
