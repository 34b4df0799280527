"""Options are checked against their types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cases import cases
from refusals import assert_refused

from espnet_medusa.data.options import build_options, check_choice


@dataclass(frozen=True)
class Options:
    count: int = 1
    share: float | None = 0.5
    name: str = "x"
    flag: bool = True
    marks: Sequence[float] = ()
    tokens: Sequence[int] | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)


@cases(
    (None,),
    ({"count": 2, "share": None, "name": "", "marks": (1, 2.5), "tokens": [1], "conf": {"a": 1}},),
    ({"share": 1, "marks": [0, 5], "tokens": (1, 2)},),
    ({"tokens": None, "conf": {}},),
)
def test_valid_options_are_unchanged_and_others_have_defaults(given):
    assert vars(build_options(Options, given, "conf")) == vars(Options()) | (given or {})


@cases(
    ("count", 2.5, "a whole number"),
    ("count", "2", "a whole number"),
    ("count", None, "a whole number"),
    ("count", True, "a whole number"),
    ("share", False, "a number or none"),
    ("share", "1e-3", "a number or none"),  # so PyYAML reads 1e-3
    ("name", 3, "text"),
    ("flag", 2, "true, false"),
    ("marks", (1.0, "2"), "a list of numbers"),
    ("tokens", (1, 2, 3.5), "a list of whole numbers or none"),
    ("tokens", "", "a list of whole numbers or none"),
    ("tokens", 7, "a list of whole numbers or none"),
    ("conf", [1], "Mapping[str, typing.Any]"),
)
def test_wrong_types_are_refused(name, value, allowed):
    message = re.escape(f"decoder_conf: {name}: {value!r}; allowed: ") + f".*{re.escape(allowed)}$"
    assert_refused(f"^{message}", build_options, Options, {name: value}, "decoder_conf")


def test_numbers_of_numpy_and_booleans_are_converted():
    options = build_options(Options, {"count": np.int64(3), "share": np.float32(0.5)}, "conf")
    assert (type(options.count), options.count, options.share) == (int, 3, 0.5)
    assert build_options(Options, {"flag": 0}, "conf").flag is False
    assert build_options(Options, {"flag": np.bool_(True)}, "conf").flag is True


@cases(
    ({"cuont": 1}, "unknown option 'cuont' .*'count'.*share"),
    *((values, ".*; allowed: options with") for values in (5, "x: 2", [1], [("count", 2)])),
)
def test_unknown_options_and_no_mappings_are_refused(values, message):
    assert_refused(f"decoder_conf: {message}", build_options, Options, values, "decoder_conf")


@pytest.mark.parametrize("value", ["greedy\nsearch", "beam\u2028", "\x85"])
def test_an_unknown_choice_is_refused_in_one_line(value):
    assert_refused("^search: ", check_choice, value, ["greedy", "beam"], "search")
