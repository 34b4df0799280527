"""Imported first, it lets a command import modules of tests/support."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
