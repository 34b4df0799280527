"""Shared by all tests: import paths, one thread per process, fixtures."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before torch, whose OpenMP threads would spin for up to 20 ms at each barrier, and before ESPnet,
# whose imports it makes shorter.
import espnet_medusa.bin  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = [ROOT / "tests" / "support", ROOT / "tests" / "endurance", ROOT / "bench"]
sys.path[:0] = map(str, [*FOLDERS, *sorted(ROOT.glob("egs/*/asr1/local"))])
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # unknown names fail without a request


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the server of recipes' processes while xdist's workers collect all tests."""
    of_all = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if of_all and hasattr(session.config, "workerinput"):
        import warm_python

        warm_python.environment()


def pytest_collection_finish() -> None:
    """Run one thread, and spend less time on garbage collection: not on what is imported by now.

    The process that starts xdist's workers does not collect tests, and does not import torch.
    """
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)


@pytest.fixture(autouse=True)
def no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    from first_depths import keep_first_depths

    keep_first_depths(monkeypatch.setattr)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    import torch

    with torch.no_grad():
        yield


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def aiola_golden() -> Path:
    """Reference values computed with aiola-lab/whisper-medusa."""
    return ROOT / "tests" / "golden" / "aiola"


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of utterances of all calls of ``Speech2Text.decode``."""
    from recorded_calls import record_calls

    from espnet_medusa.inference.speech2text import Speech2Text

    return record_calls(monkeypatch, Speech2Text, "decode", lambda _, given, *languages: len(given))


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory):
    """An experiment with a tiny random model, which tests only read."""
    from experiment import make_experiment

    return make_experiment(tmp_path_factory.mktemp("experiment"))
