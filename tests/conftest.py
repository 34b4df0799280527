"""Shared by all tests: one thread a process, and the shared data where it is there."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


@pytest.fixture(scope="session")
def aiola_fixtures() -> Path:
    """Golden files made with aiola-lab/whisper-medusa."""
    folder = SHARED / "fixtures" / "aiola"
    if not folder.is_dir():
        pytest.skip("../shared/fixtures/aiola is not there")
    return folder
