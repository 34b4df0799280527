"""Make the benchmark's environment: the project's own (setup_env.py) and the other programs.

Usage: python3 tools/setup_bench.py [--venv .venv-bench] [--torch auto|cpu|cuda]
"""

import argparse
import subprocess
import sys
from pathlib import Path

from setup_env import ROOT, install_with_cpu_torch, run, uv_environment

PROGRAMS = (
    "ctranslate2==4.8.5", "faster-whisper==1.2.1", "openai-whisper==20250625",
    "openvino-genai==2026.4.1.0", "pywhispercpp==1.5.1",
)  # fmt: skip
# Converts models for OpenVINO. In an environment of its own, as it needs transformers 4.
EXPORTER = ["optimum-intel[openvino]==2.2.0", "transformers==4.57.6", "nncf==3.4.0"]


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
    overrides, environment = arguments.venv / "overrides.txt", uv_environment(python)
    uv, exporter = arguments.venv / "bin" / "uv", arguments.venv / "openvino"
    install = [uv, "pip", "install", "--override", overrides, "--python"]
    run([*install, python, *PROGRAMS], env=environment)
    run([uv, "venv", "--allow-existing", exporter])
    exporter_python = exporter / "bin" / "python"
    install_with_cpu_torch([*install, exporter_python], EXPORTER, environment)
    # torchvision's operators need another build of torch; with them, the export fails.
    run([uv, "pip", "uninstall", "--python", exporter_python, "torchvision"])
    modules = "ctranslate2, faster_whisper, openvino_genai, pywhispercpp, whisper, espnet_medusa"
    run([python, "-c", f"import {modules}"])


if __name__ == "__main__":
    main()
