"""Mapped weights: pages are dropped without a change of values, and copies survive the file."""

import copy
from pathlib import Path

import pytest
import torch

from espnet_medusa.data.files.checkpoint import load_weights
from espnet_medusa.data.files.mapped_weights import MappedWeight, copy_mapped_weights, page_out

ROWS, SIZE = 5000, 64


@pytest.fixture
def mapped(tmp_path):
    values = torch.randn(ROWS, SIZE)
    torch.save({"weight": values}, tmp_path / "weights.pth")
    module = torch.nn.Linear(SIZE, ROWS)
    part = load_weights(tmp_path / "weights.pth", mapped=True)["weight"]
    module.weight = MappedWeight(part, True)
    module.weight.mapped = part
    return module, values


def resident_bytes(weight) -> int:
    """Return the bytes of the file mapping around a weight that are in memory."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            start, end = (int(part, 16) for part in words[0].split("-"))
            inside = start <= weight.data_ptr() < end
        elif inside and words[0] == "Rss:":
            return 1024 * int(words[1])
    raise AssertionError("the weight is not mapped")


def test_pages_leave_the_memory_and_values_stay(mapped):
    module, values = mapped
    assert torch.equal(module.weight, values)
    before = resident_bytes(module.weight)
    page_out(module.weight, slice(0, ROWS // 2))
    assert resident_bytes(module.weight) == pytest.approx(before / 2, rel=0.1)
    page_out(module.weight)
    assert resident_bytes(module.weight) < before / 10
    assert torch.equal(module.weight, values)


@pytest.mark.parametrize("change", [copy.deepcopy, torch.nn.Module.double, torch.nn.Module.half])
def test_pages_of_other_memory_are_not_dropped(mapped, change):
    module, values = mapped
    changed = change(module)
    page_out(changed.weight)
    page_out(torch.nn.Parameter(values))
    assert torch.equal(changed.weight, values.to(changed.weight.dtype))


def test_the_file_may_change_after_a_copy(mapped, tmp_path):
    module, values = mapped
    copy_mapped_weights(module, torch.float32)
    assert type(module.weight) is torch.nn.Parameter and module.weight.requires_grad
    with (tmp_path / "weights.pth").open("r+b") as file:
        file.truncate(0)  # reading a mapped page would end the process
    assert torch.equal(module.weight, values)
