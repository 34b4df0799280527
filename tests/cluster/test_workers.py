"""Workers: package versions, the choice of a GPU, and errors."""

from types import SimpleNamespace

import pytest
from scripted_decoder import refuse

from espnet_medusa.cluster import connection
from espnet_medusa.cluster import worker as worker_module
from espnet_medusa.cluster.connection import COMPARED, Workers, version_difference
from espnet_medusa.cluster.worker import WorkerDecoder, choose_gpu
from espnet_medusa.errors import InputError

HERE = dict.fromkeys(COMPARED, "1.2.3") | {"python": "3.11.7.final.0", "torch": "2.13.0+cpu"}


@pytest.mark.parametrize("changes", [{}, {"python": "3.11.2.final.0"}, {"torch": "2.13.0+cu128"}])
def test_builds_of_one_version_are_equal(changes):
    assert version_difference(HERE, {"a": HERE, "b": HERE | changes}) is None


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        ("torch", "2.12.1+cpu", "b has torch 2.12.1, this machine has 2.13.0"),
        ("python", "3.12.7.final.0", "b has python 3.12, this machine has 3.11"),
        ("espnet_medusa", None, "b has espnet_medusa not installed, this machine has 1.2.3"),
    ],
)
def test_a_different_version_is_one_line(package, version, message):
    line = version_difference(HERE, {"a": HERE, "b": HERE | {package: version}})
    assert line.startswith(message) and "\n" not in line


def test_workers_that_join_are_compared_once(monkeypatch):
    queries, workers_there = [], {"tcp://a:1": HERE}

    def versions(packages):
        queries.append(set(workers_there))
        about = {address: {"packages": versions} for address, versions in workers_there.items()}
        return {"client": {"packages": HERE}, "scheduler": {"packages": HERE}, "workers": about}

    client = SimpleNamespace(
        get_versions=versions,
        nthreads=lambda: dict.fromkeys(workers_there, 1),
        scheduler=SimpleNamespace(address="tcp://s:1"),
    )
    monkeypatch.setattr(connection, "LOOK_EVERY_S", 0.0)
    workers = Workers(client)
    assert workers.count() == workers.count() == 1 and queries == [{"tcp://a:1"}]
    workers_there["tcp://b:2"] = HERE | {"torch": "1.0"}
    with pytest.raises(InputError, match=r"worker tcp://b:2 has torch 1.0, this machine has 2.13"):
        workers.count()
    workers_there.clear()
    assert workers.count() == 0 and len(queries) == 2
    del client.nthreads  # as of a client that has closed itself
    with pytest.raises(InputError, match="scheduler: tcp://s:1: the connection is lost"):
        workers.count()


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("0", "4"), ("1", "5"), ("2", "7"), ("3", "4"),
        ("SLURMCluster-0", "4"), ("SLURMCluster-2-14", "7"),
        ("alice", "4"), ("tcp://10.0.0.7:38571", "4"),
    ],
)  # fmt: skip
def test_the_number_in_a_workers_name_chooses_its_gpu(name, gpu):
    assert choose_gpu(name, ["4", "5", "7"]) == gpu


def test_a_worker_sets_its_gpu_only_with_use_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    worker = SimpleNamespace(name=2)
    WorkerDecoder(refuse, ".").setup(worker)
    assert worker_module.os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,7"
    WorkerDecoder(refuse, ".", use_gpu=True).setup(worker)
    assert worker_module.os.environ["CUDA_VISIBLE_DEVICES"] == "7"


def test_a_missing_folder_is_named(monkeypatch, tmp_path):
    here = SimpleNamespace(address="tcp://a:1")
    monkeypatch.setattr(worker_module, "get_worker", lambda: here)
    missing = tmp_path / "missing"
    with pytest.raises(InputError, match=rf"^worker tcp://a:1: {missing}: missing; workers"):
        WorkerDecoder(refuse, str(missing)).sample_rate_hz()
