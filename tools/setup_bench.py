"""Make the benchmark's environment: the project's own (setup_env.py) and the other programs.

Usage: python3 tools/setup_bench.py [--venv .venv-bench] [--torch auto|cpu|cuda]
"""

import argparse
import subprocess
import sys
from pathlib import Path

from setup_env import ROOT, run, uv_environment

PROGRAMS = ("ctranslate2==4.8.5", "faster-whisper==1.2.1", "openai-whisper==20250625")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-bench")
    parser.add_argument("--torch", choices=["auto", "cpu", "cuda"], default="auto")
    arguments = parser.parse_args()
    python = arguments.venv / "bin" / "python"
    setup = Path(__file__).with_name("setup_env.py")
    subprocess.run(
        [sys.executable, setup, "--venv", arguments.venv, "--torch", arguments.torch], check=True
    )
    overrides = arguments.venv / "overrides.txt"
    install = [arguments.venv / "bin" / "uv", "pip", "install", "--python", python]
    run([*install, "--override", overrides, *PROGRAMS], env=uv_environment(python))
    run([python, "-c", "import ctranslate2, faster_whisper, whisper, espnet_medusa"])


if __name__ == "__main__":
    main()
