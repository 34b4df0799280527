"""The GPU benchmark on a CPU: all parts, interrupted runs, failures, the report."""

import json
import time
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import decoder_calls
import gpu
import gpu_parts.part
import machine
import matplotlib.image
import pytest
import torch
from cases import cases
from contestants import make_subjects
from contestants.ways import BEAM5
from experiment import write_corpus
from gpu_parts import audio_to_text, shape_calls
from gpu_parts.cuda_tests import marked_files, read_report
from gpu_parts.part import (
    ASSISTED,
    CALLERS,
    COMPILED,
    CTRANSLATE2,
    FAILED,
    NO_MEMORY,
    NO_TIME,
    OURS,
    PROGRAMS,
    TRANSFORMERS,
    Part,
    PartResults,
)
from gpu_parts.report import write_report
from heads_folders import pack, with_heads
from recipes import write_script
from refusals import command_refused, exit_status
from tiny_whisper import save_whisper_of_bytes

from espnet_medusa.bin import convert
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.inference.convert.read_whisper import read_whisper
from espnet_medusa.networks.whisper.text import TextOptions

HAS_CTRANSLATE2 = find_spec("ctranslate2") is not None
ON_CPU = {"device": "cpu", "threads": 1, "seconds": 60.0}
MACHINE = {"processor": "P", "cores": 2, "device": "G", "threads": 2, "versions": {"torch": "2"}}


@pytest.fixture
def decoder(monkeypatch):
    monkeypatch.setitem(make_subjects.WHISPER_SHAPES, "tiny", (2, 32, 2))
    monkeypatch.setattr(make_subjects, "VOCAB_SIZE", 96)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    return make_subjects.random_decoder("tiny").requires_grad_(False)


def test_rows_are_written_at_once_and_not_repeated(tmp_path):
    part = Part.open(tmp_path / "one.json", {"of": "all"}, 60.0)
    part.measure({"a": 1}, lambda: {"ms": 1.0})
    part.measure({"a": 2}, Mock(side_effect=ValueError("no\nmore")))
    part.measure({"a": 3}, Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    part.measure({"a": 4, "b": "x"}, Mock(side_effect=KeyError("y")), peer=True)
    assert part.status == FAILED
    assert part.results.failed == {"2": "no"}
    assert part.results.left_out == {"3": NO_MEMORY, "4, x": "'y' (KeyError)"}
    assert PartResults.read(part.path) == part.results
    again = Part.open(part.path, {"of": "all"}, 60.0)
    again.measure({"a": 1}, Mock(side_effect=AssertionError("measured twice")))
    again.measure({"a": 2}, lambda: {"ms": 2.0})
    assert again.status == 0 and again.results.left_out == {}
    assert PartResults.read(part.path).rows == [{"a": 1, "ms": 1.0}, {"a": 2, "ms": 2.0}]
    late = Part.open(part.path, {"of": "others"}, 0.0)
    late.measure({"a": 1}, Mock(side_effect=AssertionError("begun after the time limit")))
    assert late.status == 0 and late.results.rows == [] and late.results.left_out == {"1": NO_TIME}


def test_a_row_that_exceeds_the_time_limit_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts.part, "GRACE_SECONDS", 0.1)
    part = Part.open(tmp_path / "one.json", {}, 0.1)
    begin = time.monotonic()
    part.measure({"a": 1}, lambda: time.sleep(60))
    assert time.monotonic() - begin < 30
    part.measure({"a": 2}, lambda: {})
    assert part.status == 0 and part.results.left_out == {"1": NO_TIME, "2": NO_TIME}


def test_calls_of_both_programs_return_equal_logits(decoder):
    """Every call evaluates its nodes after the same context and drops them again."""
    encoder_out = torch.randn(2, 20, 32, generator=torch.Generator().manual_seed(0))
    logits_of = {}

    def record(name, function):
        def call(*args):
            result = function(*args)
            logits = result[0] if isinstance(result, tuple) else result
            logits_of.setdefault(name, []).append(logits.flatten(0, -2))
            return result

        return call

    runtime = build_runtime(decoder, "float32")
    runtime.logits = record("ours", runtime.logits)
    calls = {"ours": decoder_calls.TreeCalls(runtime, encoder_out)}
    whisper = decoder_calls.transformers_decoder(decoder)
    with torch.no_grad():
        calls["eager"] = decoder_calls.CachedCalls(whisper, encoder_out)
        calls["static"] = decoder_calls.CompiledCalls(whisper, encoder_out, 3)
    for name in ("eager", "static"):
        calls[name]._extend = record(name, calls[name]._extend)
    for timed in calls.values():
        assert len(decoder_calls.call_seconds(timed, 3, 2, "cpu")) == 2
    assert decoder_calls.CONTEXT_TOKENS > 3
    first = logits_of["ours"][0]
    assert first.shape == (2 * 3, 96)
    assert {name: len(rows) for name, rows in logits_of.items()} == dict.fromkeys(calls, 2 + 5)
    for rows in logits_of.values():
        for row in rows:
            torch.testing.assert_close(row, first, rtol=1e-4, atol=1e-3)


def test_tests_that_need_a_gpu_and_their_outcomes(tmp_path):
    (tmp_path / "r.xml").write_text(
        "<testsuites><testsuite><testcase classname='a' name='b'/>"
        "<testcase classname='a' name='c'><skipped/></testcase>"
        "<testcase classname='a' name='d'><failure>no</failure></testcase>"
        "<testcase classname='a' name='e'><error/></testcase></testsuite></testsuites>"
    )
    counts, failed = read_report(tmp_path / "r.xml")
    assert counts == {"passed": 1, "skipped": 1, "failed": 2} and failed == ["a.d", "a.e"]
    names = [Path(path).name for path in marked_files(Path(__file__).resolve().parents[1])]
    assert "test_cuda_graph.py" in names and "test_greedy.py" not in names


def test_calls_of_a_shape_on_a_cpu(tmp_path, monkeypatch, decoder):
    monkeypatch.setattr(shape_calls, "MEMORY_FRAMES", 20)
    monkeypatch.setattr(shape_calls, "REPEATS", 2)
    output = tmp_path / "gpu_calls_tiny.json"
    options = {"shape": "tiny", "nodes": [1, 3], "batch_sizes": [1, 2], "contestants": CALLERS}
    options |= ON_CPU | {"output": str(output), "weights": ["float32", "bfloat16"]}
    assert shape_calls.main(json.dumps(options)) == 0
    rows = PartResults.read(output).rows
    of_each = {name: sum(row["contestant"] == name for row in rows) for name in CALLERS}
    counts = {name: 8 for name in CALLERS} | {COMPILED: 2, CTRANSLATE2: 2 * HAS_CTRANSLATE2}
    assert of_each == counts
    # CTranslate2's figures are differences of times, which may be negative for so small a decoder.
    assert all(row["contestant"] == CTRANSLATE2 or row["ms"][0] > 0 for row in rows)
    assert all(row["peak_bytes"] is None for row in rows)


def test_a_whisper_on_a_cpu(tmp_path, monkeypatch):
    folder = save_whisper_of_bytes(tmp_path / "tiny", hidden_size=16, max_target_positions=100)
    base, exp = read_whisper(str(folder), TextOptions()), str(tmp_path / "exp")
    pack(tmp_path / "heads", with_heads(base, "recurrent"), base)
    convert.main([str(folder), exp, "--heads", str(tmp_path / "heads"), "--language", "en"])
    write_corpus(tmp_path, {"0": 0.5, "1": 0.6})
    (tmp_path / "text").write_text("0 some words\n1 some words\n")
    monkeypatch.setattr(audio_to_text, "WARM_UP_UTTERANCES", 1)
    output = tmp_path / "gpu_texts_x.json"
    options = ON_CPU | {"output": str(output), "weights": ["float32"], "num_utterances": 200}
    options |= {"whisper": exp, "assistant": exp, "data_dir": str(tmp_path)}
    plain = {"contestants": ["ours"], "drafters": [], "batch_sizes": [1]}
    programs = [OURS, TRANSFORMERS, COMPILED, ASSISTED]
    both = {"contestants": programs, "drafters": ["heads"], "batch_sizes": [2]}
    alone = both | {"batch_sizes": [1]}
    for more in (plain, both, alone):
        assert audio_to_text.main(json.dumps(options | more)) == 0
    results = PartResults.read(output)
    assert not results.left_out
    ways = [(row["contestant"], row["drafts"], row["batch_size"]) for row in results.rows]
    assert ways == [
        (OURS, "", 1), (OURS, BEAM5, 1),
        (OURS, "", 2), (OURS, "heads", 2), (OURS, BEAM5, 2), (TRANSFORMERS, "", 2),
        (OURS, "heads", 1), (TRANSFORMERS, "", 1), (COMPILED, "", 1), (ASSISTED, "", 1),
    ]  # fmt: skip
    greedy = [row for row in results.rows if row["drafts"] != BEAM5]
    assert [row.get("same_text") for row in greedy[:3]] == [None, "2/2", "2/2"]
    assert greedy[3]["same_text"].endswith("/2")  # it ends random texts by another rule
    assert len({row["wer"] for row in results.rows[-3:]}) == 1  # all of transformers'
    plain, drafted = greedy[0], greedy[2]
    assert plain["tokens_per_call"] <= 1 and plain["calls"] >= drafted["calls"]
    assert plain["utterances"] == 2 and plain["wer"] > 0 and len(plain["texts"]) == 2


def test_rows_of_the_first_weights_come_first():
    args = Namespace(weights=["float16", "float32"], contestants=PROGRAMS, assistant=None)
    rows = audio_to_text.list_rows(args, ["", "heads"])
    assert (CTRANSLATE2, "float16", BEAM5) in rows
    rows.remove((CTRANSLATE2, "float16", BEAM5))
    assert rows[:3] == [(OURS, "float32", ""), (OURS, "float16", ""), (OURS, "float16", "heads")]
    alone = [name for name in PROGRAMS if name not in (OURS, ASSISTED)]
    assert rows[3:7] == [(name, "float16", "") for name in alone]
    assert rows[7:] == [(OURS, "float32", "heads"), (TRANSFORMERS, "float32", "")]
    args.contestants, args.assistant = [ASSISTED], "exp/tiny"
    assert audio_to_text.list_rows(args, [""]) == [(ASSISTED, "float16", "")]


def test_libraries_of_pythons_packages_are_found(tmp_path, monkeypatch):
    (tmp_path / "nvidia" / "cublas" / "lib").mkdir(parents=True)
    monkeypatch.setattr(gpu.sysconfig, "get_path", lambda name: str(tmp_path))
    assert gpu.cuda_libraries() == [str(tmp_path / "nvidia" / "cublas" / "lib")]


SLEEPER = """
import json, sys, time
options = json.loads(sys.argv[1])
results = {"about": {}, "rows": [{"tests": 2, "skipped": 1}], "left_out": {"x": "y"}, "failed": {}}
"""
WRITE = "json.dump(results, open(options['output'], 'w'))\n"
PROCESSES = {
    "cuda_tests": WRITE,
    "shape_calls": WRITE + "print('one')\nprint('last words')\nsys.exit(9)\n",
    "audio_to_text": "results['failed'] = {'z': 'why'}\n" + WRITE + "time.sleep(60)\n",
}


def test_parts_that_fail_or_exceed_their_time(tmp_path, monkeypatch, capsys):
    (tmp_path / "gpu_parts").mkdir()
    for name, text in PROCESSES.items():
        (tmp_path / "gpu_parts" / f"{name}.py").write_text(SLEEPER + text)
    monkeypatch.setattr(gpu, "BENCH", tmp_path)
    monkeypatch.setattr(gpu, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(gpu, "write_report", lambda parts, *_: reports.append(dict(parts)))
    (tmp_path / "config.yaml").touch()
    (tmp_path / "wav.scp").touch()
    reports = []
    command = ["--device", "cpu", "--shapes", "tiny", "--whisper", tmp_path, "--data_dir", tmp_path]
    command += ["--results", tmp_path, "--machine", "here", "--minutes", 0.02]
    assert exit_status(gpu.main, *command) == FAILED
    assert [len(report) for report in reports] == [1, 2, 3]
    tests, calls, texts = reports[-1].values()
    assert tests.failed == {} and tests.rows == [{"tests": 2, "skipped": 1}]
    assert calls.failed == {"calls_tiny": "last words; see gpu_calls_tiny.log"}
    assert calls.rows == tests.rows
    assert texts.failed["z"] == "why" and "had not ended after" in [*texts.failed.values()][1]
    assert PartResults.read(tmp_path / "here" / f"gpu_texts_{tmp_path.name}.json") == texts
    assert "calls_tiny: failed: calls_tiny: last words" in capsys.readouterr().out
    # A process that ends before it writes has no rows of an earlier run.
    (tmp_path / "gpu_parts" / "shape_calls.py").write_text("raise SystemExit('at once')")
    assert exit_status(gpu.main, *command, "--parts", "calls") == FAILED
    failed = {"calls_tiny": "at once; see gpu_calls_tiny.log"}
    assert reports[-1]["calls_tiny"] == PartResults({}, failed=failed)
    assert PartResults.read(tmp_path / "here" / "gpu_calls_tiny.json") == calls


@cases(
    ([], "--device cuda, but torch sees no GPU; try --device cpu"),
    (["--device", "cpu", "--weights", "float16"], "allowed on cpu: float32, bfloat16"),
    (["--device", "cpu", "--whisper", "x"], "--whisper, --data_dir: give both"),
    (["--device", "cpu", "--whisper", "x", "--data_dir", "y"], "--whisper x: no config.yaml"),
)
def test_unusable_options_are_refused(command, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with command_refused(capsys, message):
        gpu.main(command)


def test_parts_and_their_shares_of_the_time():
    args = gpu.get_parser().parse_args(["--device", "cpu", "--shapes", "tiny", "base"])
    gpu.check(args)
    assert [part.name for part in gpu.plan(args)] == ["tests", "calls_tiny", "calls_base"]
    assert gpu.plan(args)[1].share < gpu.plan(args)[2].share  # it has fewer layers
    args.contestants, args.parts = ["transformers"], ["calls"]
    for part in gpu.plan(args):
        assert part.options["contestants"] == ["transformers"]


def test_report(tmp_path):
    call = {"weights": "float16", "batch_size": 1, "peak_bytes": 2_500_000_000}
    calls = PartResults({}, [
        call | {"contestant": "ours", "nodes": 1, "ms": [1.0, 1.5, 2.0]},
        call | {"contestant": "ours", "nodes": 11, "ms": [1.0, 1.75, 2.0], "peak_bytes": 3e9},
        call | {"contestant": "transformers", "nodes": 11, "ms": [9.0, 9.5, 9.9]},
    ], {"ours, float32": NO_TIME})  # fmt: skip
    row = {
        "contestant": "ours", "weights": "float16", "drafts": "heads", "batch_size": 4,
        "encoder_ms": 1.0, "decoder_ms": 2.0, "ms": 3.0, "wer": 4.5, "peak_bytes": None,
        "calls": 9.0, "tokens_per_call": 2.5, "same_text": "1/2",
    }  # fmt: skip
    texts = PartResults({}, [row, row | {"batch_size": 8, "ms": 2.0}], {}, {"ours, x": "no (Y)"})
    tests = PartResults({}, [{"tests": 9, "skipped": 1}])
    parts = {"tests": tests, "calls_base": calls, "texts_base": texts}
    write_report(parts, MACHINE | {"gpu": {"driver": "550", "clock": "1980 MHz"}}, tmp_path)
    text = (tmp_path / "gpu.md").read_text()
    assert text.startswith("# G\n") and "|driver|550|" in text and "|torch|2|" in text
    assert "9 tests need a GPU; 1 were skipped." in text
    assert "|contestant|weights|batch|1 nodes [ms]|11 nodes [ms]|GB|" in text
    assert "|ours|float16|1|1.50|1.75|3.00|" in text
    assert "|transformers|float16|1||9.50|2.50|" in text
    assert "|ours, drafts by heads|float16|4|1.0|2.0|3.0|9.0|2.50|4.50|1/2||" in text
    assert "## Failed\n\n- texts_base: ours, x: no (Y)\n" in text
    assert f"## Left out\n\n- calls_base: ours, float32: {NO_TIME}\n" in text
    for name in ("gpu_calls.png", "gpu_batches.png"):
        assert min(matplotlib.image.imread(tmp_path / name).shape[:2]) > 150
        assert f"]({name})" in text


def test_each_fact_of_the_gpu_is_a_query(tmp_path, monkeypatch):
    """A name that the driver lacks leaves the other facts; without nvidia-smi CUDA remains."""
    script = '#!/bin/sh\ncase "$*" in *id=GPU-u-1*driver_version*) echo 550.1;;\n'
    script += "*id=GPU-u-1*pstate*) echo P0;; *) echo no; exit 2;; esac\n"
    write_script(tmp_path / "nvidia-smi", script)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Namespace(uuid="u-1"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = {"CUDA": str(torch.version.cuda), "driver": "550.1", "performance state": "P0"}
    assert machine.describe_gpu() == facts
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert [*machine.describe_gpu()] == ["CUDA"]
