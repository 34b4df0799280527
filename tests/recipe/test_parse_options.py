"""Options of recipe scripts, through bash."""

import subprocess
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).resolve().parents[2] / "egs" / "TEMPLATE" / "asr1"


def write_script(folder: Path, parser: str) -> Path:
    script = folder / "script.sh"
    script.write_text(
        "set -euo pipefail\n"
        "# options\n"
        "stage=1       # first stage\n"
        "skip_eval=false\n"
        "asr_args=\n"
        "inference_config=\n"
        "# end of options\n"
        "not_an_option=kept\n"
        f". {TEMPLATE}/parse_options.sh\n"
        "other_options=()\n"
        f'{parser} "$0" "$@"\n'
        'echo "${stage}|${skip_eval}|${asr_args}|${inference_config}|${not_an_option}'
        '|${other_options[*]}"\n'
    )
    return script


def run_script(script: Path, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", script, *options], capture_output=True, text=True)


@pytest.fixture
def strict(tmp_path):
    return write_script(tmp_path, "parse_options")


def test_defaults_are_used_without_options(strict):
    assert run_script(strict).stdout == "1|false|||kept|\n"


@pytest.mark.parametrize("name", ["--inference_config", "--inference-config"])
def test_dash_and_underscore_are_the_same(strict, name):
    assert run_script(strict, name, "a.yaml").stdout == "1|false||a.yaml|kept|\n"
    assert run_script(strict, f"{name}=a=b.yaml").stdout == "1|false||a=b.yaml|kept|\n"


def test_values_may_look_like_options_hold_spaces_or_be_empty(strict):
    done = run_script(strict, "--asr_args", "--max_epoch 2", "--stage", "")
    assert done.stdout == "|false|--max_epoch 2||kept|\n"


def test_the_last_of_equal_options_wins(strict):
    assert run_script(strict, "--stage", "3", "--stage", "12").stdout.startswith("12|")


def test_unknown_option_names_similar_ones(strict):
    done = run_script(strict, "--inference_confg", "x")
    assert done.returncode == 2
    assert "unknown option --inference_confg" in done.stderr
    assert "--inference_config" in done.stderr
    assert "--stage" not in done.stderr


def test_unknown_option_without_similar_ones_names_all(strict):
    done = run_script(strict, "--zzzz", "x")
    assert done.returncode == 2
    assert all(name in done.stderr for name in ("--stage", "--skip_eval", "--asr_args"))


def test_only_listed_variables_are_options(strict):
    assert run_script(strict, "--not_an_option", "x").returncode == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--skip_eval", "yes"], "allowed are true and false"),
        (["--skip_eval", "--stage"], "allowed are true and false"),
        (["--stage"], "a value is missing"),
        (["12"], "unexpected '12'"),
    ],
)
def test_bad_values_end_the_script(strict, options, message):
    done = run_script(strict, *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_help_lists_the_options_with_their_comments(strict):
    done = run_script(strict, "--help")
    assert done.returncode == 0
    assert "--stage=1       # first stage" in done.stdout
    assert "not_an_option" not in done.stdout


def test_unknown_options_are_passed_on_in_order(tmp_path):
    script = write_script(tmp_path, "parse_known_options")
    done = run_script(script, "--ngpu", "0", "--stage", "2", "--test-sets", "a b")
    assert done.stdout == "2|false|||kept|--ngpu 0 --test_sets a b\n"
