"""Code that several commands of tests/endurance share; makes tests/support importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
