"""Rows of checks, written anew and read back."""

import pytest
from harness.checks_table import CheckRow, read_rows, write_row

from espnet_medusa.errors import InputError


def test_a_row_takes_the_place_of_its_last(tmp_path):
    table = tmp_path / "checks.md"
    assert read_rows(table) == []
    second = CheckRow("R2 kills", "20 kills", "yes", "kills.py --seed 1", "a | b")
    first = CheckRow("R1 broken", "950 of 1,000", "status 0", "broken.py", "a")
    for row in (second, CheckRow("R2 kills", "19", "no", "", ""), first, second):
        write_row(table, row)
    assert read_rows(table) == [first, second]


def test_other_files_are_left_alone(tmp_path):
    other = tmp_path / "notes.md"
    other.write_text("# Notes\n")
    with pytest.raises(InputError, match="notes.md: not a table of checks"):
        write_row(other, CheckRow("R1", "", "", "", ""))
    assert other.read_text() == "# Notes\n"
