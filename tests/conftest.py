"""Shared by all tests: modules of tests and bench, one thread a process, aiola's facts."""

import gc
import os
import sys
from pathlib import Path

import pytest
import torch

import espnet_medusa  # noqa: F401  before ESPnet, whose imports it makes shorter

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests/support", "tests/endurance", "bench")]
torch.set_num_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # names that are nowhere: said at once, not asked for


def pytest_collection_finish() -> None:
    """All is imported: nothing of it is garbage, which each test would look for."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def aiola_golden() -> Path:
    """Facts measured with aiola-lab/whisper-medusa."""
    return ROOT / "tests" / "golden" / "aiola"


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of utterances of all calls of ``Speech2Text.decode``."""
    from recorded_calls import record_decode

    return record_decode(monkeypatch, len)
