"""The table of full-size checks, and a recipe with symbolic links to a model."""

import pytest
from harness import CheckRow, decoding_command, make_recipe, read_rows, run, write_row

from espnet_medusa.errors import InputError


def test_a_row_replaces_the_last_of_its_name_and_other_files_stay(tmp_path):
    table = tmp_path / "checks.md"
    assert read_rows(table) == []
    second = CheckRow("R2 kills", "20 kills", "yes", "kills.py --seed 1", "a | b")
    first = CheckRow("R1 broken", "950 of 1,000", "status 0", "broken.py", "a")
    for row in (second, CheckRow("R2 kills", "19", "no", "", ""), first, second):
        write_row(table, row)
    assert read_rows(table) == [first, second]
    other = tmp_path / "notes.md"
    other.write_text("# Notes\n")
    with pytest.raises(InputError, match="notes.md: not a table of checks"):
        write_row(other, CheckRow("R1", "", "", "", ""))
    assert other.read_text() == "# Notes\n"


def test_a_recipe_decodes_by_links(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.yaml", "model.pth"):
        (model / name).write_text(name)
    recipe = make_recipe(tmp_path / "recipe", model)
    assert (recipe / "exp/asr/model.pth").read_text() == "model.pth"
    done = run(decoding_command([2]), recipe)
    assert done.returncode == 0 and "Stage" not in done.stdout, done.stderr
