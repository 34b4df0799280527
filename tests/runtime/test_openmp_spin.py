"""Threads that wait fall asleep soon, unless the environment says how they wait."""

import os
import subprocess
import sys

import pytest

SAY = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("given", "before", "spins"),
    [
        ({}, "import espnet_medusa", "3000"),
        ({"GOMP_SPINCOUNT": "7"}, "import espnet_medusa", "7"),
        ({"OMP_WAIT_POLICY": "active"}, "import espnet_medusa", "None"),
        ({}, "import torch, espnet_medusa", "None"),  # too late to change anything
    ],
)
def test_the_environment_decides_first(given, before, spins):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{SAY}"],
        env=environment | given, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{spins}\n"
