"""Shell steps on a small disk: correct, accepting a half-written file, or without an error."""

from subprocess import CompletedProcess

import pytest
from cases import cases
from full_disk import FULL, PAGE, TOO_SMALL, contents, problems_of_message, small_disk, try_step

from espnet_medusa.errors import InputError

WRITE = f"head -c {6 * PAGE} /dev/zero"
FAIL = f"echo ./whole: {FULL}; exit 1"
UNNAMED = "no line names a file and states that the disk is full"


@cases(
    (f"{WRITE} > .part && mv .part whole || {{ rm .part; {FAIL}; }}", []),
    (f"[ -e whole ] || {WRITE} > whole || {{ {FAIL}; }}", ["whole differs"]),
    (f"{WRITE} > whole 2> /dev/null || true", ["status 0", UNNAMED]),
    ids=["right", "takes halves", "no error"],
)
def test_a_step_on_a_full_disk(script, problems, tmp_path):
    (tmp_path / "kept").mkdir()
    try:
        with small_disk() as disk:
            (disk / "recipe").mkdir()
            result = try_step("step", ["sh", "-c", script], disk, tmp_path / "kept", [0.5])
            size = (disk / "recipe" / "whole").stat().st_size
    except InputError as error:
        pytest.skip(str(error))
    assert result == [f"step at 0.5: {problem}" for problem in problems]
    assert size == 6 * PAGE, "the next step needs the file"


@cases(
    (f"error: [Errno 28] {FULL}: 'exp/model.pth'\n", []),
    (f"error: states: about 0.01 GB are needed, 0.00 {TOO_SMALL}\n", []),
    ("Traceback (most recent call last):\nwrite failed\n", [UNNAMED, "a traceback"]),
)
def test_an_error_names_a_file(output, problems):
    assert problems_of_message(CompletedProcess([], 1, "", output)) == problems


def test_last_digits_of_numbers_are_not_compared(tmp_path):
    versions = []
    for number in ("-0.9106418689092001", "-0.9106417496999105", "-0.92"):
        (tmp_path / "a.json").write_text(f'{{"tokens": [8402], "avg_logprob": {number}}}')
        versions.append(contents(tmp_path))
    assert versions[0] == versions[1] != versions[2]
