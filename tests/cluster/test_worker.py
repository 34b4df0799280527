"""Which GPU a worker takes, and what it says where it cannot work."""

from types import SimpleNamespace

import pytest
from scripted_decoder import refuse

from espnet_medusa.cluster import worker as worker_module
from espnet_medusa.cluster.worker import WorkerDecoder, choose_gpu
from espnet_medusa.errors import InputError


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


def test_a_worker_takes_its_gpu_only_where_one_is_asked_for(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    worker = SimpleNamespace(name=2)
    WorkerDecoder(refuse, ".").setup(worker)
    assert worker_module.os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,7"
    WorkerDecoder(refuse, ".", use_gpu=True).setup(worker)
    assert worker_module.os.environ["CUDA_VISIBLE_DEVICES"] == "7"


def test_a_folder_that_a_worker_lacks_is_named(monkeypatch, tmp_path):
    here = SimpleNamespace(address="tcp://a:1")
    monkeypatch.setattr(worker_module, "get_worker", lambda: here)
    missing = tmp_path / "missing"
    with pytest.raises(InputError, match=rf"^worker tcp://a:1: {missing} is not there; workers"):
        WorkerDecoder(refuse, str(missing)).sample_rate_hz()
