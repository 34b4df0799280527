"""Untrusted YAML is read as by PyYAML, or refused."""

import time

import pytest
import yaml
from cases import cases, combinations

from espnet_medusa.data.files.yaml_text import MAX_DEPTH, load_yaml

DOCUMENT = """
token_list: ["!", "<|endoftext|>", "\\u00e9", 'null', '~', "#", yes]
model_conf: &conf {ctc_weight: 0.3, lsm_weight: 1.0e-1, length_normalized_loss: false}
again: *conf
merged: {<<: *conf, ctc_weight: 1}
frontend: null
numbers: [0x1F, 1_000, -.inf, 190:20:30, 2001-12-14]
text: |
    two
    lines
"""
HUNDRED = ", ".join(["*a"] * 100)
NINE = [", ".join([f"*{name}"] * 9) for name in "abcdefgh"]
LISTS = "".join(f"{name}: &{name} [{nine}]\n" for name, nine in zip("bcdefghi", NINE, strict=True))
MAPPINGS = LISTS.replace("[", "{<<: [").replace("]", "]}")
KEYS = ", ".join(f"k{number}: 1" for number in range(1000))


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@combinations(text=["", "a", "[]", "a: b", DOCUMENT, nested(MAX_DEPTH - 1), nested(MAX_DEPTH)])
def test_usual_documents_are_read_as_by_pyyaml(text):
    assert load_yaml(text) == yaml.safe_load(text)


def test_a_long_token_list_is_read_quickly():
    tokens = [f"[{number}" for number in range(50_000)]
    text = yaml.dump({"token_list": tokens}, Dumper=yaml.CSafeDumper)
    started = time.process_time()
    assert load_yaml(text) == {"token_list": tokens}
    assert time.process_time() - started < 5


@cases(
    (nested(MAX_DEPTH + 1), "at most 100 deep"),
    ("{a: " * 5000 + "}" * 5000, "at most 100 deep"),
    ("[" * 200_000, "at most 100 deep"),
    ("- " * 100_000 + "x", "at most 100 deep"),
    ("? " * 100_000 + "x", "at most 100 deep"),
    ("a: &a [*a]", "at most 100 deep"),
    ("a: &a [1, 2]\n" + LISTS, "aliases make"),
    (f"a: &a {'x' * 10_000}\nb: [{HUNDRED}]", "aliases make"),
    (f"a: &a {{{KEYS}}}\nb: {{<<: [{HUNDRED}]}}", "<<: 100000 keys; allowed"),
    ("a: &a {<<: *a}", "RecursionError"),
    ("a: " + "9" * 5000, "number of 5000 characters"),
    ("a: 1" + ":1" * 5000, "number of 10001 characters"),
    ("a: 0x" + "f" * 5000, "number of 5002 characters"),
    ("!!bool x", "KeyError"),
    ("!!int ''", "IndexError|ValueError"),
    ("!!float ''", "IndexError|ValueError"),
    ("!!timestamp x", "AttributeError"),
    ("2001-99-99", "ValueError"),
    ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
    ("a: \ud800", "UnicodeEncodeError|special characters"),
    ("{", "expected"),
)
def test_unsafe_documents_are_refused(text, message):
    started = time.process_time()
    with pytest.raises(yaml.YAMLError, match=message):
        load_yaml(text)
    assert time.process_time() - started < 2


def test_merged_keys_are_limited_in_total():
    merged = "".join(f"  k{number}: 0\n" for number in range(1000))
    text = f"a: &a\n{merged}b:\n" + "  - {<<: *a}\n" * 1000
    with pytest.raises(yaml.YAMLError, match="<<: .* keys; allowed: at most 10000"):
        load_yaml(text)


def test_mappings_that_merge_one_key_many_times():
    started, text = time.process_time(), "a: &a {x: 1}\n" + MAPPINGS
    if [*map(int, yaml.__version__.split("."))] >= [6, 0, 4]:  # merges each key once
        assert load_yaml(text) == dict.fromkeys("abcdefghi", {"x": 1})
    else:
        with pytest.raises(yaml.YAMLError, match="RecursionError|aliases make|<<"):
            load_yaml(text)
    assert time.process_time() - started < 2
