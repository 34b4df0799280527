"""The OpenMP spin count, which environment variables of the user override."""

import os
import subprocess
import sys

from cases import cases

PRINT = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"


@cases(
    ({}, "import espnet_medusa.bin", "3000"),
    ({"GOMP_SPINCOUNT": "7"}, "import espnet_medusa.bin", "7"),
    ({"OMP_WAIT_POLICY": "active"}, "import espnet_medusa.bin", "None"),
    ({}, "import torch, espnet_medusa.bin", "None"),  # too late to change anything
    ({}, "import espnet_medusa", "None"),  # which training does, too
)
def test_spin_count(environment, imports, spin_count):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}\n{PRINT}"],
        env=inherited | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{spin_count}\n"
