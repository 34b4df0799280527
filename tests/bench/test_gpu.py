"""The command for a GPU, on a CPU: all parts, what is kept, what fails, what is said of it."""

import json
import sys
from pathlib import Path

import gpu
import pytest
import torch
from decoder_calls import CONTEXT_TOKENS, CachedCalls, CompiledCalls, TreeCalls, call_seconds
from gpu_parts import part as parts
from gpu_parts.cuda_tests import marked_files, read_report
from gpu_parts.part import FAILED, NO_MEMORY, NO_TIME, Kept, Part
from gpu_parts.report import write_report
from peers import make_subject

from espnet_medusa.errors import InputError
from espnet_medusa.runtime.build import build_runtime

MACHINE = {"processor": "P", "cores": 2, "device": "G", "threads": 2, "versions": {"torch": "2"}}


@pytest.fixture(scope="module")
def decoder():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(make_subject.WHISPER_SHAPES, "tiny", (2, 32, 2))
        patch.setattr(make_subject, "VOCAB_SIZE", 96)
        return make_subject.random_decoder("tiny", heads="none").requires_grad_(False)


@pytest.fixture()
def part(tmp_path):
    return Part.open(tmp_path / "one.json", {"of": "all"}, 60.0)


def fail(error):
    def work():
        raise error

    return work


def test_rows_are_kept_and_gone_on_with(part, tmp_path):
    part.measure({"a": 1}, lambda: {"ms": 1.0})
    part.measure({"a": 2}, fail(ValueError("no\nmore")))
    part.measure({"a": 3}, fail(torch.OutOfMemoryError("CUDA out of memory")))
    part.measure({"a": 4, "b": "x"}, fail(KeyError("y")), peer=True)
    assert part.status == FAILED
    assert part.kept.failed == {"2": "no"}
    assert part.kept.left_out == {"3": NO_MEMORY, "4, x": "'y' (KeyError)"}
    assert Kept.read(part.path) == part.kept
    again = Part.open(part.path, {"of": "all"}, 60.0)
    again.measure({"a": 1}, fail(AssertionError("measured twice")))
    again.measure({"a": 2}, lambda: {"ms": 2.0})
    assert again.status == 0 and again.kept.left_out == {}
    assert Kept.read(part.path).rows == [{"a": 1, "ms": 1.0}, {"a": 2, "ms": 2.0}]
    assert Part.open(part.path, {"of": "others"}, 60.0).kept.rows == []


def test_nothing_begins_when_the_time_is_over(tmp_path):
    part = Part.open(tmp_path / "one.json", {}, 0.0)
    part.measure({"a": 1}, fail(AssertionError("begun")))
    assert part.status == 0 and Kept.read(part.path).left_out == {"1": NO_TIME}


def test_calls_of_both_programs_say_the_same(decoder):
    """What a call evaluates stands behind the same context, and is dropped again."""
    memory = torch.randn(2, 20, 32, generator=torch.Generator().manual_seed(0))
    said = {}

    def listen(name, function):
        def call(*args):
            result = function(*args)
            logits = result[0] if isinstance(result, tuple) else result
            said.setdefault(name, []).append(logits.flatten(0, -2))
            return result

        return call

    runtime = build_runtime(decoder, "float32")
    runtime.logits = listen("ours", runtime.logits)
    calls = {"ours": TreeCalls(runtime, memory)}
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda function, **_: function)
        calls["eager"] = CachedCalls(decoder.whisper, memory)
        calls["static"] = CompiledCalls(decoder.whisper, memory, 3)
    for name in ("eager", "static"):
        calls[name]._extend = listen(name, calls[name]._extend)
    for one in calls.values():
        assert len(call_seconds(one, 3, 2, "cpu")) == 2
    assert CONTEXT_TOKENS > 3
    first = said["ours"][0]
    assert first.shape == (2 * 3, 96)
    for name, rows in said.items():
        assert len(rows) == 2 + 5, name
        for row in rows:
            torch.testing.assert_close(row, first, rtol=1e-4, atol=1e-3)


def test_tests_by_outcome(tmp_path):
    (tmp_path / "r.xml").write_text(
        "<testsuites><testsuite><testcase classname='a' name='b'/>"
        "<testcase classname='a' name='c'><skipped/></testcase>"
        "<testcase classname='a' name='d'><failure>no</failure></testcase>"
        "<testcase classname='a' name='e'><error/></testcase></testsuite></testsuites>"
    )
    counts, failed = read_report(tmp_path / "r.xml")
    assert counts == {"passed": 1, "skipped": 1, "failed": 2} and failed == ["a.d", "a.e"]


def test_files_with_the_mark_are_found():
    found = [Path(path).name for path in marked_files(Path(__file__).resolve().parents[1])]
    assert "test_captured.py" in found and "test_greedy.py" not in found
