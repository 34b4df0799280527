"""Other versions of packages are named, other builds of one version are not."""

from types import SimpleNamespace

import pytest

from espnet_medusa.cluster.versions import COMPARED, version_difference
from espnet_medusa.cluster.workers import Workers
from espnet_medusa.errors import InputError

OWN = dict.fromkeys(COMPARED, "1.2.3") | {"python": "3.11.7.final.0", "torch": "2.13.0+cpu"}


@pytest.mark.parametrize("changes", [{}, {"python": "3.11.2.final.0"}, {"torch": "2.13.0+cu128"}])
def test_what_makes_no_difference(changes):
    assert version_difference(OWN, {"a": OWN, "b": OWN | changes}) is None


@pytest.mark.parametrize(
    ("package", "version", "said"),
    [
        ("torch", "2.12.1+cpu", "b has torch 2.12.1, this machine has 2.13.0"),
        ("python", "3.12.7.final.0", "b has python 3.12, this machine has 3.11"),
        ("espnet_medusa", None, "b has espnet_medusa not installed, this machine has 1.2.3"),
    ],
)
def test_a_difference_is_one_line(package, version, said):
    line = version_difference(OWN, {"a": OWN, "b": OWN | {package: version}})
    assert line.startswith(said) and "\n" not in line


def test_workers_that_join_are_compared_once(monkeypatch):
    asked, there = [], {"tcp://a:1": OWN}

    def versions(packages):
        asked.append(set(there))
        about = {address: {"packages": own} for address, own in there.items()}
        return {"client": {"packages": OWN}, "scheduler": {"packages": OWN}, "workers": about}

    client = SimpleNamespace(
        get_versions=versions,
        nthreads=lambda: dict.fromkeys(there, 1),
        scheduler=SimpleNamespace(address="tcp://s:1"),
    )
    monkeypatch.setattr("espnet_medusa.cluster.workers.LOOK_EVERY_S", 0.0)
    workers = Workers(client)
    assert workers.count() == workers.count() == 1 and asked == [{"tcp://a:1"}]
    there["tcp://b:2"] = OWN | {"torch": "1.0"}
    with pytest.raises(InputError, match=r"worker tcp://b:2 has torch 1.0, this machine has 2.13"):
        workers.count()
    del there["tcp://b:2"], there["tcp://a:1"]
    assert workers.count() == 0 and len(asked) == 2
    del client.nthreads  # a client that has closed itself asks nobody
    with pytest.raises(InputError, match="scheduler: tcp://s:1: the connection is lost"):
        workers.count()
