"""Make the project's environment (.venv); only the system's python3 is required.

Usage: python3 tools/setup_env.py [--venv .venv] [--torch auto|cpu|cuda] [--espnet 202611|202511]
    [--python python3.12]

Takes the newest ESPnet for which a Python is found: on PATH or among pyenv's. An environment of
another Python is replaced. A plain ``pip install`` is not enough for ESPnet 202511:
* pip 26 rejects its dependency ci_sdr, which declares a direct URL; uv accepts it.
* It requires setuptools<74, torch 2.13 requires setuptools>=77. ESPnet uses setuptools only for
  ``distutils``, which every release contains, so the upper bound is overridden.
And for both:
* On Linux, PyPI's torch is the CUDA build with several GB of libraries. A machine without an
  NVIDIA driver gets the CPU build.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# By version of ESPnet, newest first: the torch to install, and Pythons in their order.
TORCH = {"202611": "torch==2.14.1", "202511": "torch==2.13.0"}
PYTHONS = {"202611": ("3.13", "3.12"), "202511": ("3.11", "3.10")}
OVERRIDES = "setuptools>=77\n"
# openai-whisper requires triton, which is not used with a CPU build of torch.
CPU_OVERRIDES = OVERRIDES + "triton; sys_platform == 'never'\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--torch", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--espnet", choices=[*TORCH], help="version; default: the newest")
    parser.add_argument("--python", help="command or path; default: the best one that is found")
    return parser.parse_args()


def version_of(python: str | Path) -> str | None:
    """Return "3.12" if this Python can make environments, else None."""
    code = "import ssl, venv, sys; print('{}.{}'.format(*sys.version_info))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def find_python(version: str) -> str | None:
    """Return a Python of this version: the python3 that runs this, on PATH, or pyenv's newest."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [sys.executable, f"python{version}"]
    found += sorted(map(str, pyenv.glob(f"{version}.*/bin/python")), key=natural, reverse=True)
    return next((python for python in found if version_of(python) == version), None)


def natural(path: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path)]


def choose(espnet: str | None, python: str | None) -> tuple[str, str]:
    """Return the version of ESPnet and a Python for it; exit if there is none."""
    versions = [espnet] if espnet else [*TORCH]
    if python:
        version = version_of(python)
        if version is None:
            sys.exit(f"setup failed: {python} is no Python with ssl and venv")
        fitting = [name for name in versions if version in PYTHONS[name]]
        if fitting:
            return fitting[0], python
    else:
        for name in versions:
            for version in PYTHONS[name]:
                if found := find_python(version):
                    return name, found
    wanted = "; ".join(f"ESPnet {name}: {' or '.join(PYTHONS[name])}" for name in versions)
    given = f"{python} is {version}" if python else "none was found on PATH or among pyenv's"
    sys.exit(f"setup failed: needs a Python with ssl and venv ({wanted}); {given}")


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
    espnet, base = choose(arguments.espnet, arguments.python)
    print(f"set-up: ESPnet {espnet} with {base}, about two minutes and 2 GB (6 GB with CUDA)")
    sys.stdout.flush()
    python = arguments.venv / "bin" / "python"
    if version_of(python) != version_of(base):
        clear = ["--clear"] if (arguments.venv / "pyvenv.cfg").exists() else []
        if not run([base, "-m", "venv", *clear, arguments.venv], check=False):
            sys.exit(f"setup failed: {base} lacks venv; on Debian: apt install python3-venv")
    run([python, "-m", "pip", "install", "--quiet", "uv"])
    environment = uv_environment(python)
    overrides = arguments.venv / "overrides.txt"
    install = [arguments.venv / "bin" / "uv", "pip", "install", "--python", python]
    install += ["--override", overrides]
    packages = [f"espnet=={espnet}", "-e", f"{ROOT}[demo,test]"]
    build = arguments.torch
    if build == "auto":
        build = "cuda" if shutil.which("nvidia-smi") else "cpu"
    overrides.write_text(OVERRIDES if build == "cuda" else CPU_OVERRIDES)
    if build == "cuda":
        run([*install, TORCH[espnet], *packages], env=environment)
    else:
        install_with_cpu_torch(install, packages, environment, TORCH[espnet])
    drop_unloadable_torchaudio_extension(python)
    run([python, "-c", "import espnet_medusa.espnet.task"])


if __name__ == "__main__":
    main()
