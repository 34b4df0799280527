"""Replacements in ESPnet's modules behave like the originals."""

import pytest
import yaml
from espnet2.tasks import abs_task
from espnet2.utils.config_argparse import ArgumentParser
from espnet2.utils.yaml_no_alias_safe_dump import yaml_no_alias_safe_dump

import espnet_medusa  # noqa: F401  changes it
from espnet_medusa.errors import InputError

DOCUMENT = """
token_list: ["!", "<|endoftext|>", "\\u00e9", 'null', '~', "#", yes]
model_conf: {ctc_weight: 0.3, lsm_weight: 1.0e-1, length_normalized_loss: false}
frontend: null
optim_conf: &same {lr: 1e-3}
again: *same
"""


BOMB = "[" * 100_000


def test_tasks_read_yaml_as_before(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(DOCUMENT)
    with path.open(encoding="utf-8") as file:
        config = abs_task.yaml.safe_load(file)
    assert config == yaml.safe_load(DOCUMENT)
    assert abs_task.yaml.safe_dump is yaml.safe_dump and yaml.safe_load.__module__ == "yaml"
    path.write_text(BOMB)
    with path.open(encoding="utf-8") as file, pytest.raises(InputError, match="100 deep"):
        abs_task.yaml.safe_load(file)


def test_tasks_write_yaml_as_before(tmp_path):
    config = yaml.safe_load(DOCUMENT)
    config |= {"long": "a word " * 40, "shift": "\u3042\n b: ", "at": None}
    options = {"indent": 4, "sort_keys": False}
    with (tmp_path / "config.yaml").open("w", encoding="utf-8") as file:
        abs_task.yaml_no_alias_safe_dump(config, file, **options)
    written = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(written) == config and "&" not in written
    assert abs_task.yaml_no_alias_safe_dump is not yaml_no_alias_safe_dump
    assert written == yaml_no_alias_safe_dump(config, **options)


@pytest.mark.parametrize("text", [BOMB, "a: [", "a: !!bool x", "\u00e9"])
def test_commands_refuse_a_config_that_is_not_yaml(tmp_path, text):
    path = tmp_path / "decode.yaml"
    path.write_text(text, encoding="latin-1")
    parser = ArgumentParser()
    parser.add_argument("--a")
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["--config", str(path)])
    assert str(end.value).startswith(f"error: {path}: cannot be read (")
    assert "\n" not in str(end.value)
    path.write_text("a: {b: 1}")
    assert parser.parse_args(["--config", str(path)]).a == {"b": 1}
