"""Environments of a release's check, and the rows of failures."""

from pathlib import Path

import pytest
import release_check
from cases import cases
from recipes import write_script
from refusals import assert_refused
from release_check import Failed, Release, Shell, check, check_pythons, last_error


@pytest.fixture
def python(tmp_path):
    """A Python that makes no environments."""
    path = tmp_path / "python3.99"
    text = '#!/bin/sh\n[ "$1" = -c ] && echo 3.99.0 && exit\necho Error: no venv\nexit 1\n'
    write_script(path, text)
    return path


def test_commands_do_not_see_the_checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/checkout")
    shell = Shell(tmp_path / "bin", tmp_path, tmp_path / "log")
    output = shell.run("sh", "-c", 'echo "$PYTHONPATH $HOW ${PATH%%:*} $PWD"', HOW="so")
    assert output.split() == ["so", str(tmp_path / "bin"), str(tmp_path)]
    assert output in (tmp_path / "log").read_text()


@cases(("ERROR: a\nerror: b\n\nhint\n", "error: b"), ("a\nb\n", "b"), ("", "no output"))
def test_the_last_error_is_reported(output, line):
    assert last_error(output) == line


def test_a_python_without_venv_has_a_row(tmp_path, python):
    row = check(Release(*[Path("none")] * 4, "text"), tmp_path, f"{python}=23", ["tests/a b"])
    assert row.check == "release: Python 3.99.0, pip 23" and row.found == ""
    assert row.right == f"{python} -m: Error: no venv"
    assert row.command == "release_check.py --tests 'tests/a b'"


def test_a_text_that_differs_from_the_checkouts_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(release_check, "transcribe", lambda *_: "wrong")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/true")
    shell = Shell(tmp_path / "bin", tmp_path, tmp_path / "log")
    release = Release(*[Path("none")] * 4, "right")
    with pytest.raises(Failed, match="transcribed 'wrong', the checkout wrote 'right'"):
        release_check.use(shell, release)


def test_pairs_of_a_python_and_a_pip(python):
    check_pythons([f"{python}=23"])
    for pair in ("python3.98=23", f"{python}", f"{python}=", f"{python}=new"):
        assert_refused("PYTHON=PIP is needed", check_pythons, [pair])
