"""espnet-medusa-recipe: a copy of a recipe, from the archive that setup.py writes."""

import os
import subprocess
from distutils.core import run_setup
from pathlib import Path

import pytest
import setuptools  # noqa: F401  (its distutils)
from refusals import command_refused

from espnet_medusa.bin import recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def archive(tmp_path, monkeypatch):
    if not (ROOT / "espnet_medusa").is_dir():
        return recipe.ARCHIVE  # the tests of a wheel
    monkeypatch.chdir(ROOT)
    command = run_setup("setup.py", stop_after="init").get_command_obj("build_py")
    write = type(command).run.__globals__["write_recipes"]
    monkeypatch.setattr(recipe, "ARCHIVE", tmp_path / "recipes.tar.gz")
    write(recipe.ARCHIVE)
    monkeypatch.chdir(tmp_path)
    return recipe.ARCHIVE


def test_a_recipe_runs_in_its_new_folder(archive, tmp_path, capsys):
    recipe.main(["mini_synth", str(tmp_path / "mine")])
    assert f"cd {tmp_path}/mine/egs/mini_synth/asr1 && ./run.sh" in capsys.readouterr().err
    copied = tmp_path / "mine"
    assert sorted(os.listdir(copied / "egs")) == ["TEMPLATE", "mini_synth"]
    of_espnet3 = "egs3/mini_synth/medusa"
    for name in ("run.py", "README.md", "conf/training.yaml", "dataset/__init__.py"):
        assert (copied / of_espnet3 / name).is_file()
    assert (copied / "egs/mini_synth/asr1/local/languages/en.yaml").is_file()
    for path in (ROOT / "egs" / "mini_synth").glob("*/*.sh"):
        made = copied / path.relative_to(ROOT)
        assert made.read_bytes() == path.read_bytes() and made.is_symlink() == path.is_symlink()
        assert os.access(made, os.X_OK) == os.access(path, os.X_OK)
    assert (copied / "egs/mini_synth/asr1/conf/decode/baseline.yaml").is_file()
    assert (copied / "egs/mini_synth/demo/local/data.sh").is_file()
    assert not [*copied.rglob("exp*"), *copied.rglob("dump*"), *copied.rglob("__pycache__")]
    data_sh = ["bash", "local/data.sh", "--help"]
    done = subprocess.run(data_sh, cwd=copied / "egs/mini_synth/asr1", capture_output=True)
    assert done.returncode == 0, done.stderr


def test_unknown_recipes_and_old_folders_are_refused(archive, tmp_path, capsys):
    with command_refused(capsys, "'egs2' is not known", "fsdd, librispeech, mini_synth, voxpopuli"):
        recipe.main(["egs2"])
    with command_refused(capsys, "mine exists already"):
        (tmp_path / "mine").mkdir()
        recipe.main(["fsdd", str(tmp_path / "mine")])


def test_an_editable_installation_names_the_checkout(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(recipe, "ARCHIVE", tmp_path / "none")
    with command_refused(capsys, "egs/ of the checkout"):
        recipe.main(["fsdd"])
