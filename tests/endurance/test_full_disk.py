"""Steps of a shell on a small disk: one that says so and goes on, and those that do not."""

from subprocess import CompletedProcess

import pytest
from full_disk import PAGE, Step, contents, problems_of_message, small_disk, try_step

from espnet_medusa.errors import InputError

WRITE = f"head -c {6 * PAGE} /dev/zero"
FULL = "No space left on device; exit 1"
RIGHT = f"{WRITE} > .part && mv .part whole || {{ rm .part; echo ./whole: {FULL}; }}"
TAKES_HALVES = f"[ -e whole ] || {WRITE} > whole || {{ echo ./whole: {FULL}; }}"
SAYS_NOTHING = f"{WRITE} > whole 2> /dev/null || true"


@pytest.fixture
def disk():
    try:
        with small_disk() as folder:
            yield folder
    except InputError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("script", "problems"),
    [
        (RIGHT, []),
        (TAKES_HALVES, ["whole differs"]),
        (SAYS_NOTHING, ["status 0", "no line names a file and says that the disk is full"]),
    ],
)
def test_a_step_on_a_full_disk(disk, tmp_path, script, problems):
    (disk / "recipe").mkdir()
    (tmp_path / "kept").mkdir()
    step = Step("step", ["sh", "-c", script])
    found = try_step(step, disk, tmp_path / "kept", [0.5], tmp_path / "log")
    assert found == [f"step at 0.5: {problem}" for problem in problems]
    assert (disk / "recipe" / "whole").stat().st_size == 6 * PAGE, "the next step finds it"


def test_what_a_command_says():
    said = "error: [Errno 28] No space left on device: 'exp/model.pth'\n"
    assert problems_of_message(CompletedProcess([], 1, "", said)) == []
    said = (
        "error: states: about 0.01 GB are needed, 0.00 GB are free; name a folder on another disk\n"
    )
    assert problems_of_message(CompletedProcess([], 1, "", said)) == []
    nameless = CompletedProcess([], 1, "Traceback (most recent call last):\n", "write failed\n")
    assert problems_of_message(nameless) == [
        "no line names a file and says that the disk is full",
        "a traceback",
    ]


def test_last_digits_of_numbers_do_not_count(tmp_path):
    found = []
    for number in ("-0.9106418689092001", "-0.9106417496999105", "-0.92"):
        (tmp_path / "a.json").write_text(f'{{"tokens": [8402], "avg_logprob": {number}}}')
        found.append(contents(tmp_path))
    assert found[0] == found[1] != found[2]
