"""Data files and version of the wheel, the package's root, registration in ESPnet's tables."""

import re
from distutils.core import run_setup
from pathlib import Path

import pytest
import setuptools  # noqa: F401  (its distutils)
from espnet2.tasks.asr import decoder_choices, encoder_choices, model_choices
from refusals import assert_refused

import espnet_medusa
from espnet_medusa.decoding.runtime.espnet_scorer import ScoringWhisperDecoder
from espnet_medusa.espnet import registration
from espnet_medusa.espnet.training.asr_model import MedusaASRModel
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = "espnet_medusa/pretrained_heads"
of_the_checkout = pytest.mark.skipif(
    not (ROOT / "espnet_medusa").is_dir(), reason="the package is a wheel's, without its setup.py"
)


@pytest.fixture
def data_files(monkeypatch):
    """Return a function: relative paths of the wheel's data files, by setup.py of a folder."""

    def read(root: Path) -> set[str]:
        monkeypatch.chdir(root)
        command = run_setup("setup.py", stop_after="init").get_command_obj("build_py")
        command.finalize_options()
        return {f"{folder}/{name}" for _, folder, _, names in command.data_files for name in names}

    return read


def test_heads_and_sources_are_in_the_wheel(tmp_path, data_files):
    for name in ("setup.py", "README.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    files = ("tiniest/README.md", "tiniest/heads.safetensors", "tiniest/notes.txt")
    for name in (*(f"pretrained_heads/{name}" for name in files), "__init__.py"):
        (tmp_path / "espnet_medusa" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "espnet_medusa" / name).write_text('__version__ = "0.0.7"\n')
    assert data_files(tmp_path) == {f"{SHIPPED}/{name}" for name in files[:2]}


@of_the_checkout
def test_all_data_files_are_in_the_wheel(data_files):
    data = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "espnet_medusa").rglob("*")
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__"
    }
    assert data == data_files(ROOT)
    assert any(name.endswith(".cpp") for name in data)


@of_the_checkout
def test_the_version_is_defined_once_and_licenses_agree(monkeypatch):
    monkeypatch.chdir(ROOT)
    about, citation = run_setup("setup.py", stop_after="init"), (ROOT / "CITATION.cff").read_text()
    version, notice = about.get_version(), (ROOT / "NOTICE").read_text()
    assert version == espnet_medusa.__version__ and f"\nversion: {version}\n" in citation
    listed = re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert listed[0] == version, "the newest of CHANGELOG.md"
    assert about.get_license() == "Apache-2.0" in citation
    assert about.metadata.license_files == ["LICENSE", "NOTICE"]
    assert f"{SHIPPED}/*/heads.safetensors" in notice and "CC BY 4.0" in notice
    cards = [card.read_text() for card in (ROOT / SHIPPED).glob("*/README.md")]
    assert cards and all("license: cc-by-4.0\n" in card for card in cards)


def test_register_fills_the_tables_and_may_be_repeated(monkeypatch):
    registration.register_asr()
    registration.register_asr()
    assert encoder_choices.get_class("hf_whisper") is HFWhisperEncoder
    assert decoder_choices.get_class("whisper_medusa") is ScoringWhisperDecoder
    assert model_choices.get_class("medusa") is MedusaASRModel
    monkeypatch.setitem(encoder_choices.classes, "hf_whisper", int)
    assert_refused("hf_whisper.*already", registration.register_asr, error=RuntimeError)
