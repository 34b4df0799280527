"""OpenVINO GenAI and whisper.cpp without their packages; clips of several lengths."""

import struct
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import matplotlib.image
import numpy as np
import pytest
from contestants.base import CONTESTANTS, LENGTHS, OPENVINO, SPEECH, WHISPER_CPP, Setup
from contestants.ways import BEAM5, FLOAT16, GREEDY, INT8, Way
from experiment import write_corpus, write_lines
from inputs import cut_utterances
from recipes import write_script
from refusals import assert_refused
from report import write_report
from tiny_whisper import save_tiny_whisper


def test_openvino_converts_its_weights_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino_genai", package := MagicMock())
    pipeline = package.WhisperPipeline.return_value
    output = pipeline.generate.return_value
    output.texts, metrics = [" Red."], output.perf_metrics
    metrics.get_features_extraction_duration.return_value.mean = 2.0
    metrics.get_encode_inference_duration.return_value.mean = 3.0
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.delitem(sys.modules, "contestants.openvino", raising=False)
    subject = SimpleNamespace(folder=tmp_path, hugging_face=tmp_path / "hf", language="en")
    with pytest.raises(FileNotFoundError, match="optimum-cli: missing; make it with tools"):
        CONTESTANTS[SPEECH][OPENVINO].build(subject, INT8, Setup())
    script = '#!/bin/sh\nfor last; do :; done\nmkdir "$last"\necho "$@" > "$last/log"\n'
    write_script(tmp_path / "openvino" / "bin" / "optimum-cli", script)
    for _ in range(2):  # the second one fails if the folder is made again
        contestant = CONTESTANTS[SPEECH][OPENVINO].build(subject, INT8, Setup(threads=1))
    assert "--weight-format int8" in (tmp_path / "openvino_int8" / "log").read_text()
    threads = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1}
    package.WhisperPipeline.assert_called_with(tmp_path / "openvino_int8", "CPU", **threads)
    timed = contestant.transcribe(Way(OPENVINO, INT8, BEAM5), samples := np.zeros(9))
    prompt = {"language": "<|en|>", "task": "transcribe"}
    pipeline.generate.assert_called_with(samples, num_beams=5, **prompt)
    assert (timed.results[0].text, timed.encoder_seconds) == (" Red.", 0.005)


def test_whisper_cpp_reads_the_weights(tmp_path, monkeypatch):
    packages = {name: MagicMock() for name in ("_pywhispercpp", "pywhispercpp.model")}
    for name, package in {"pywhispercpp": MagicMock(), **packages}.items():
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.delitem(sys.modules, "contestants.whisper_cpp", raising=False)
    native, model = (packages[name] for name in packages)
    transcribe = model.Model.return_value.transcribe
    transcribe.return_value = [SimpleNamespace(text="Red.")]
    times = "mel time = 2.00 ms\nencode time = 3.50 ms / 1 runs"
    log = native.whisper_log_set
    native.whisper_print_timings.side_effect = lambda _: log.call_args[0][0](1, times)
    subject = SimpleNamespace(folder=tmp_path, hugging_face=tmp_path / "hf", language="en")
    save_tiny_whisper(subject.hugging_face, encoder_layers=2, widening=4)
    contestant = CONTESTANTS[SPEECH][WHISPER_CPP].build(subject, FLOAT16, Setup())
    for search, beam_size in ((GREEDY, None), (BEAM5, 5)):
        timed = contestant.transcribe(Way(WHISPER_CPP, FLOAT16, search), np.zeros(9))
        assert (timed.results[0].text, timed.encoder_seconds) == ("Red.", 0.0055)
        assert transcribe.call_args[1].get("beam_search", {}).get("beam_size") == beam_size
    stream = (tmp_path / "ggml.bin").open("rb")

    def unpack(form):
        return struct.unpack(form, stream.read(struct.calcsize(form)))

    assert unpack("<12i") == (0x67676D6C, 51865, 1500, 32, 2, 2, 448, 32, 2, 2, 80, 1)
    assert unpack("<2i") == (80, 201) and stream.seek(4 * 80 * 201, 1)
    tokens = [stream.read(*unpack("<i")) for _ in range(*unpack("<i"))]
    assert (len(tokens), tokens[0], tokens[15947]) == (50257, b"!", b"Hello")
    from contestants.openai_whisper import load_whisper

    for name, tensor in load_whisper(subject.hugging_face).state_dict().items():
        dimensions, length, half = unpack("<3i")
        assert np.prod(unpack(f"<{dimensions}i")[::-1]) == tensor.numel()
        assert stream.read(length).decode() == name
        values = np.frombuffer(stream.read((4 - 2 * half) * tensor.numel()), f"<f{4 - 2 * half}")
        assert np.allclose(values, tensor.numpy().ravel(), atol=1e-3)
    assert not stream.read()


def test_clips_of_several_lengths(tmp_path):
    write_corpus(tmp_path, {"a": 1.0, "b": 2.5, "c": 2.0})
    write_lines(tmp_path / "text", dict.fromkeys("abc", "words"))
    lengths = [(clip.id, len(clip.speech)) for clip in cut_utterances(tmp_path, [0.5, 2.0])]
    assert lengths == [("b_0.5s", 8000), ("b_2s", 32000), ("c_0.5s", 8000), ("c_2s", 32000)]
    assert_refused("no utterance of 3 s", cut_utterances, tmp_path, [1.0, 3.0])
    row = {"label": "ours, int8", "speed": {"value": 2.0}, "ms_by_seconds": {"0.5": 20.4, "2": 31}}
    machine = {"device": "cpu", "processor": "P", "threads": 2, "versions": {}}
    report = {"kind": LENGTHS, "title": "T", "details": "D", "machine": machine, "timed": True}
    report |= {"left_out": {}, "rows": [row | {"search": search} for search in (GREEDY, BEAM5)]}
    write_report(report, tmp_path / "x.md")
    text = (tmp_path / "x.md").read_text()
    assert "0.5 s [ms]|2 s [ms]|" in text and "|ours, int8|2.00|20|31|" in text
    assert min(matplotlib.image.imread(tmp_path / "x.png").shape[:2]) > 150
