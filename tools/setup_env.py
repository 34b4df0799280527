"""Make the project's environment (.venv); only the system's python3 is required.

Usage: python3 tools/setup_env.py [--venv .venv] [--torch auto|cpu|cuda] [--espnet 202511]

A plain ``pip install`` is not enough:
* pip 26 rejects ESPnet 202511's dependency ci_sdr, which declares a direct URL; uv accepts it.
* ESPnet 202511 requires setuptools<74, torch 2.13 requires setuptools>=77. ESPnet uses setuptools
  only for ``distutils``, which every release contains, so the upper bound is overridden.
* On Linux, PyPI's torch is the CUDA build with several GB of libraries. A machine without an
  NVIDIA driver gets the CPU build.
"""

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# By version of ESPnet.
TORCH = {"202511": "torch==2.13.0", "202611": "torch==2.14.1"}
LEAST_PYTHON = {"202511": (3, 10), "202611": (3, 12)}
OVERRIDES = "setuptools>=77\n"
# openai-whisper requires triton, which is not used with a CPU build of torch.
CPU_OVERRIDES = OVERRIDES + "triton; sys_platform == 'never'\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--torch", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--espnet", choices=[*TORCH], default="202511", help="version of ESPnet")
    return parser.parse_args()


def run(command: list, check: bool = True, quiet: bool = False, **kwargs) -> bool:
    print("+", " ".join(map(str, command)), flush=True)
    output = subprocess.DEVNULL if quiet else None
    done = subprocess.run(command, stdout=output, stderr=output, **kwargs)
    if check and done.returncode != 0:
        sys.exit(f"setup failed: {' '.join(map(str, command))} returned {done.returncode}")
    return done.returncode == 0


def uv_environment(python: Path) -> dict:
    """Return an environment in which uv uses the package indexes of pip's configuration."""
    environment = dict(os.environ)
    configured = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True
    ).stdout
    for line in configured.splitlines():
        key, _, value = line.partition("=")
        if key.endswith(".find-links"):
            environment.setdefault("UV_FIND_LINKS", ",".join(value.strip("'\"").split()))
        elif key.endswith(".index-url") and not key.endswith("extra-index-url"):
            environment.setdefault("UV_DEFAULT_INDEX", value.strip("'\""))
    return environment


def install_with_cpu_torch(
    install: list, packages: list[str], environment: dict, torch: str = TORCH["202511"]
) -> None:
    """Run uv's command ``install`` with packages and the CPU build of torch.

    The build is in the configured indexes or in PyTorch's own. Without a connection to the latter,
    PyPI's CUDA build (6 GB) is installed, which also computes on a CPU.
    """
    for build in ([f"{torch}+cpu"], ["--torch-backend", "cpu", torch]):
        if run([*install, *build, *packages], check=False, env=environment):
            return
    run([*install, torch, *packages], env=environment)


def drop_unloadable_torchaudio_extension(python: Path) -> None:
    """Delete torchaudio's compiled files if they cannot be loaded.

    PyPI's torchaudio is compiled for a CUDA build of torch, and its import fails with a CPU build.
    ESPnet uses only its Python code, which can be imported without the compiled files.
    """
    if run([python, "-c", "import torchaudio"], check=False, quiet=True):
        return
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = subprocess.run([python, "-c", where], capture_output=True, text=True).stdout.strip()
    for library in Path(site, "torchaudio", "lib").glob("*.so"):
        print(f"+ remove {library.name}: it needs a CUDA build of torch")
        library.unlink()
    run([python, "-c", "import torchaudio"])


def main() -> None:
    arguments = parse_arguments()
    least = LEAST_PYTHON[arguments.espnet]
    if sys.version_info < least:
        needed = ".".join(map(str, least))
        sys.exit(
            f"setup failed: ESPnet {arguments.espnet} needs Python {needed} or newer; this is "
            f"{sys.version.split()[0]}; use make setup ESPNET=... PYTHON=python{needed}"
        )
    print("set-up: about a minute and 1.8 GB with the CPU build of torch", flush=True)
    python = arguments.venv / "bin" / "python"
    if not python.exists():
        try:
            venv.create(arguments.venv, with_pip=True)
        except (subprocess.CalledProcessError, ImportError):
            shutil.rmtree(arguments.venv, ignore_errors=True)
            sys.exit("setup failed: this python3 has no venv; on Debian: apt install python3-venv")
    run([python, "-m", "pip", "install", "--quiet", "uv"])
    environment = uv_environment(python)
    overrides = arguments.venv / "overrides.txt"
    install = [arguments.venv / "bin" / "uv", "pip", "install", "--python", python]
    install += ["--override", overrides]
    packages = [f"espnet=={arguments.espnet}", "-e", f"{ROOT}[demo,test]"]
    build = arguments.torch
    if build == "auto":
        build = "cuda" if shutil.which("nvidia-smi") else "cpu"
    overrides.write_text(OVERRIDES if build == "cuda" else CPU_OVERRIDES)
    if build == "cuda":
        run([*install, TORCH[arguments.espnet], *packages], env=environment)
    else:
        install_with_cpu_torch(install, packages, environment, TORCH[arguments.espnet])
    drop_unloadable_torchaudio_extension(python)
    run([python, "-c", "import espnet_medusa.espnet.task"])


if __name__ == "__main__":
    main()
