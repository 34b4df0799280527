"""Options of recipe scripts, through bash."""

import subprocess
from pathlib import Path

import pytest
from cases import cases
from recipes import TEMPLATE


def write_script(folder: Path, parser: str) -> Path:
    script = folder / "script.sh"
    script.write_text(
        "set -euo pipefail\n# options\nstage=1       # first stage\nskip_eval=false\n"
        "asr_args=\ninference_config=\n# end of options\nnot_an_option=set\n"
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


@cases(
    ([], "1|false|||set|"),
    (["--inference_config", "a.yaml"], "1|false||a.yaml|set|"),
    (["--inference-config", "a.yaml"], "1|false||a.yaml|set|"),
    (["--inference_config=a=b.yaml"], "1|false||a=b.yaml|set|"),
    (["--inference-config=a=b.yaml"], "1|false||a=b.yaml|set|"),
    (["--asr_args", "--max_epoch 2", "--stage", ""], "|false|--max_epoch 2||set|"),
    (["--stage", "3", "--stage", "12"], "12|false|||set|"),
)
def test_options_set_their_variables(options, values, strict):
    assert run_script(strict, *options).stdout == f"{values}\n"


@cases(
    (["--skip_eval", "yes"], ["allowed are true and false"]),
    (["--skip_eval", "--stage"], ["allowed are true and false"]),
    (["--stage"], ["a value is missing"]),
    (["12"], ["unexpected '12'"]),
    (["--inference_confg", "x"], ["option --inference_confg", "did you mean: --inference_config"]),
    (["--zzzz", "x"], ["--stage", "--skip_eval", "--asr_args"]),
    (["--not_an_option", "x"], ["--not_an_option"]),
)
def test_unusable_options_end_the_script(options, messages, strict):
    done = run_script(strict, *options)
    assert done.returncode == 2 and all(message in done.stderr for message in messages)
    if options[0] == "--inference_confg":
        assert "--stage" not in done.stderr, "only similar options are named"


def test_help_lists_the_options_with_their_comments(strict):
    done = run_script(strict, "--help")
    assert done.returncode == 0
    assert "--stage=1       # first stage" in done.stdout
    assert "not_an_option" not in done.stdout


def test_unknown_options_are_passed_on_in_order(tmp_path):
    script = write_script(tmp_path, "parse_known_options")
    done = run_script(script, "--ngpu", "0", "--stage", "2", "--test-sets", "a b")
    assert done.stdout == "2|false|||set|--ngpu 0 --test_sets a b\n"
