"""Which GPU a worker takes."""

import pytest

from espnet_medusa.cluster.worker import choose_gpu


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("0", "4"), ("1", "5"), ("2", "7"), ("3", "4"),
        ("SLURMCluster-0", "4"), ("SLURMCluster-2-14", "7"),
        ("alice", "4"), ("tcp://10.0.0.7:38571", "4"),
    ],
)  # fmt: skip
def test_a_workers_number_chooses_its_gpu(name, gpu):
    assert choose_gpu(name, ["4", "5", "7"]) == gpu
