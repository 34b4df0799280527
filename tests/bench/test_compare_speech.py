"""Programs on speech and on long recordings: figures by hand, journal, processes, formats."""

import json
import struct
import sys
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import compare
import matplotlib.image
import numpy as np
import pytest
import torch
import warm_python
from cases import cases
from choose_ways import make_ways
from contestants import base
from contestants.base import FASTER_WHISPER, OPENAI_WHISPER, Result, Segment, Setup, Timed
from contestants.client import Client
from contestants.subjects import SpeechSubject
from contestants.ways import BASELINE, BEAM5, CTC, FLOAT16, FLOAT32, GREEDY, HEADS, INT8, OURS, Way
from experiment import write_corpus, write_lines
from figures import Inputs, differences, make_rows
from inputs import cut_utterances
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from recipes import write_script
from refusals import assert_refused
from report import write_report
from runner import Journal, Measurement, Session, measure
from segments import first_difference
from tiny_whisper import save_tiny_whisper
from transformers import WhisperModel

from espnet_medusa.bin import convert
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.speech2text import Speech2Text

MACHINE = {"device": "cpu", "processor": "P", "threads": 2, "versions": {"torch": "2"}}
A = Segment(0.0, 2.0, " Red.", -0.1, [(" Red.", 0.5, 1.0)])
B = Segment(2.0, 4.5, " Blue.", -0.2)


def journal_of(results):
    """A journal with (result, encoder seconds, decoder seconds, calls, tokens) by way and input."""
    journal = Journal()
    for way, inputs in results.items():
        for name, (result, encoder, decoder, *counts) in inputs.items():
            if counts:
                statistics = DecodingStatistics(decoder_calls=counts[0], tokens=counts[1])
                result = replace(result, counts=vars(statistics))
            journal.rows.append(Measurement(way, (name,), 0, Timed([result], encoder, decoder)))
    return journal


def ways_in(journal):
    return list(dict.fromkeys(row.way for row in journal.rows))


def report_of(journal, inputs, title, **more):
    rows = make_rows(journal, ways_in(journal), inputs)
    about = {"kind": inputs.kind, "title": title, "details": "2 inputs", "machine": MACHINE}
    return about | {"timed": True, "left_out": {"x": "gone"}, "rows": rows, **more}


def test_rows_of_speech_by_hand(tmp_path):
    faster, other = Way(FASTER_WHISPER, INT8, GREEDY), Way("transformers", FLOAT32, BEAM5)
    plain, drafted = Way(OURS, INT8, GREEDY), Way(OURS, INT8, GREEDY, drafts=HEADS)
    journal = journal_of({
        faster: {"a": (Result("a b"), 3.0, 1.0), "b": (Result("C"), 6.0, 2.0)},
        plain: {"a": (Result("A b."), 1.5, 0.5, 4, 4), "b": (Result("D"), 3.0, 1.0, 2, 2)},
        drafted: {"a": (Result("a b"), 0.8, 0.2, 1, 4), "b": (Result("D"), 1.6, 0.4, 1, 2)},
        other: {"a": (Result(""), 1.0, 1.0), "b": (Result("d"), 1.0, 1.0)},
    })  # fmt: skip
    inputs = Inputs(base.SPEECH, ["a", "b"], {"a": "a b", "b": "d"}, {"a": 4.0, "b": 4.0})
    report = report_of(journal, inputs, "Whisper base, samples to text")
    first, ours, heads, _ = report["rows"]
    labels = "faster-whisper, int8", "ours, int8", "ours, int8, drafts by heads"
    assert [row["label"] for row in report["rows"]] == [*labels, "transformers, float32"]
    assert (first["encoder_ms"], first["decoder_ms"], first["ms"]) == (4500, 1500, 6000)
    speeds = [row.get("speed") for row in report["rows"]]
    assert speeds == [{"value": 1.0}, {"value": 2.0}, {"value": 4.0}, None]
    wer = [row["wer"]["value"] for row in report["rows"]]
    assert wer == pytest.approx([100 / 3, 0, 0, 200 / 3])  # case and full stops do not count
    assert (heads["same"], heads["calls"], heads["tokens_per_call"]["value"]) == ("1/2", 2, 3.0)
    assert "same" not in ours and "calls" not in first
    write_report(report, tmp_path / "real_whisper_base.md")
    text = (tmp_path / "real_whisper_base.md").read_text()
    assert "|ours, int8, drafts by heads|1200|300|1500|4.00|1.0|3.00|0.0|1/2|" in text
    assert "|faster-whisper, int8|4500|1500|6000|1.00|||33.3||" in text
    assert "## beam 5\n" in text and "Left out: x: gone." in text
    assert json.loads((tmp_path / "real_whisper_base.json").read_text()) == report
    assert min(matplotlib.image.imread(tmp_path / "real_whisper_base.png").shape[:2]) > 150


def segments(*parts):
    return Result.of_segments([*parts])


def test_rows_of_recordings_by_hand(tmp_path):
    moved, drawn = replace(A, words=[(" Red.", 0.52, 1.04)]), replace(A, temperature=0.4)
    faster, ours = Way(FASTER_WHISPER, INT8, GREEDY), Way(OURS, FLOAT32, GREEDY)
    both, late, first = segments(A, B), segments(A, replace(B, end_s=4.52)), segments(A)
    journal = journal_of({
        Way(OPENAI_WHISPER, FLOAT32, GREEDY): {"r": (both, 1.0, 1.0), "q": (first, 1.0, 1.0)},
        faster: {"r": (first, 4.0, 2.0), "q": (first, 4.0, 2.0)},
        replace(faster, batch_size=8): {"r": (both, 1.0, 1.0), "q": (first, 1.0, 1.0)},
        ours: {"r": (segments(moved, B), 1.0, 1.0, 6, 6), "q": (first, 1.0, 1.0, 2, 3)},
        replace(ours, drafts=HEADS): {
            "r": (late, 1.0, 1.0, 2, 6), "q": (segments(drawn), 1.0, 1.0, 1, 3)
        },
    })  # fmt: skip
    references = {"r": "red blue", "q": "red"}
    inputs = Inputs(base.RECORDINGS, ["r", "q"], references, {"r": 1800.0, "q": 1800.0})
    listed = differences(journal, ways_in(journal), inputs)
    report = report_of(journal, inputs, "Whisper base, long recordings", differences=listed)
    openai, faster, batched, ours, drafted = report["rows"]
    assert [row["seconds_per_hour"] for row in report["rows"]] == [4, 12, 4, 4, 4]
    assert [row["speed"]["value"] for row in report["rows"]] == [3, 1, 3, 3, 3]
    assert faster["wer"]["value"] == pytest.approx(100 / 3) and openai["wer"]["value"] == 0
    assert batched["label"] == "faster-whisper, int8, in batches of 8"
    assert "as_openai" not in openai and "as_openai" not in faster
    assert (ours["as_openai"], ours["segments_as_openai"]) == ("2/2", "3/3")
    assert ours["word_times_differ_s"] == pytest.approx(0.01)  # 0.02, 0.04, 0, 0
    assert (drafted["as_openai"], drafted["segments_as_openai"]) == ("1/2", "2/3")
    assert drafted["drawn"] == 1 and "drawn" not in ours
    assert drafted["same"] == "1/2" and drafted["tokens_per_call"]["value"] == 3
    (difference,) = listed
    assert difference["recording"] == "r" and difference["segment"] == 1
    assert difference["average_log_probabilities"] == [-0.2, -0.2]
    write_report(report, tmp_path / "long.md")
    text = (tmp_path / "long.md").read_text()
    assert "Left out: x: gone." in text
    assert "- r, greedy, ours, float32, drafts by heads, 2.00 s: «Blue.» (-0.20000)" in text
    assert min(matplotlib.image.imread(tmp_path / "long.png").shape[:2]) > 150
    write_report(report | {"timed": False}, tmp_path / "counts.md")
    counted = (tmp_path / "counts.md").read_text()
    assert "[s]|" not in counted.replace("differ by [s] (median)|", "") and ".png" not in counted


@cases(
    ([A, B], [A, B], None), ([A, B], [A], 1), ([], [A], 0), ([A], [replace(A, text="one")], 0),
    ([A], [replace(A, start_s=0.004)], None), ([A], [replace(A, start_s=0.01)], 0),
)  # fmt: skip
def test_the_first_difference(theirs, ours, segment):
    difference = first_difference(segments(*theirs), segments(*ours))
    assert (difference and difference["segment"]) == segment


def test_the_journal_keeps_measurements(tmp_path):
    path, about = tmp_path / "journal.jsonl", {"threads": 2}
    way = Way(OURS, FLOAT32, GREEDY)
    measured = Measurement(way, ("r",), 0, Timed([segments(A, B)], 2.0, 3.0))
    Journal(path, about).add(measured)
    with path.open("a") as stream:
        stream.write('{"way": {"con')  # a process that ended within a line
    journal = Journal(path, about)
    assert journal.rows == [measured]
    journal.add(replace(measured, names=("s",)))
    assert Journal(path, about).has(way, ["s"], 0)
    assert journal.has(way, ["r"], 0) and not journal.has(way, ["q"], 0)
    assert not journal.has(way, ["r"], 1) and not journal.has(replace(way, drafts=HEADS), ["r"], 0)
    assert_refused("journal.jsonl: is of another model", Journal, path, {"threads": 1})


def record(ways, rounds):
    """Measure in a session for each of ``rounds``' options; return the (way, input) decoded."""
    client = Mock(**{"decode.return_value": Timed([Result("x")], 0.0, 1.0)})
    with Session(lambda _: client, Journal()) as session:
        for options in rounds:
            measure(session, ways, [(1, ["r"]), (1, ["q"])], **options)
    return [(way, *names) for way, names in (call.args for call in client.decode.call_args_list)]


def test_turns_are_random_within_an_input():
    ways = [Way(OURS, weights, GREEDY) for weights in "abcdef"]
    decoded = record(ways, [{}])
    assert {way for way, _ in decoded[:6]} == {*ways}  # warm-up
    assert [name for _, name in decoded[6:]] == [*"rrrrrrqqqqqq"]
    first, second = ([way for way, key in decoded[6:] if key == name] for name in "rq")
    assert {*first} == {*second} == {*ways} and first != second


def test_slow_ways_skip_later_rounds_and_measurements_are_not_repeated():
    way = Way(OURS, FLOAT32, GREEDY)
    decoded = record([way], [{"rounds": 3, "way_seconds": 3.5}, {"rounds": 2}])
    assert decoded == [(way, name) for name in "rrqrq"]


@pytest.fixture(scope="module")
def utterances(tmp_path_factory, experiment):
    """Block heads and CTC on a random base, without formats of other programs; two utterances."""
    folder = tmp_path_factory.mktemp("subject")
    speech = np.random.default_rng(0).standard_normal((2, 16000)) / 10
    files = str(experiment.config), str(experiment.model)
    subject = SpeechSubject(folder, "tiny", ["one", "two"], *files, "en", None, [HEADS, CTC])
    subject.save({"one": speech[0], "two": speech[1, :12000]})
    return subject


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A random Whisper, without formats of other programs; 35 s of noise."""
    folder = tmp_path_factory.mktemp("subject")
    path = save_openai_whisper(openai_whisper(1, end=4.0), folder / "whisper.pt")
    convert.main([str(path), str(folder / "exp"), "--language", "en"])
    files = [str(folder / "exp" / name) for name in ("config.yaml", "model.pth")]
    subject = SpeechSubject(folder, "tiny", ["one"], *files, "en", None, [HEADS], long=True)
    subject.save({"one": noise_and_silence(35, 0)})
    return subject


def ways_of(subject, *options):
    return make_ways(subject, compare.get_parser().parse_args(options), {})


def test_ways_of_speech(utterances):
    options = "--contestants", FASTER_WHISPER, OURS, "--weights", INT8
    ways = [(way.contestant, way.search, way.drafts) for way in ways_of(utterances, *options)]
    each = (FASTER_WHISPER, BASELINE), (OURS, BASELINE), (OURS, HEADS), (OURS, CTC)
    assert ways == [(name, search, drafts) for search in (GREEDY, BEAM5) for name, drafts in each]
    everything = ways_of(utterances, "--searches", "greedy", "--drafters")
    contestants = base.CONTESTANTS[base.SPEECH].values()
    assert len(everything) == sum(len(entry.weights) for entry in contestants)


def test_ways_of_recordings(recording):
    ways = ways_of(recording, "--searches", "greedy", "--weights", "int8")
    assert [*base.CONTESTANTS[base.RECORDINGS]] == [OPENAI_WHISPER, FASTER_WHISPER, OURS]
    assert {(way.contestant, way.weights, way.batch_size, way.drafts) for way in ways} == {
        (OPENAI_WHISPER, FLOAT32, 1, BASELINE),
        *((FASTER_WHISPER, INT8, size, BASELINE) for size in (1, 8)),
        *((OURS, INT8, size, drafts) for size in (1, 8) for drafts in (BASELINE, HEADS)),
    }


@pytest.fixture
def warm(monkeypatch):
    """Start contestants' processes by fork."""
    monkeypatch.setattr("sys.executable", warm_python.executable())


def run(subject, ways, **options):
    journal, setup = Journal(), Setup(threads=1, **options)
    with Session(lambda way: Client(subject.folder, *way.process, setup), journal) as session:
        measure(session, ways, [(1, [name]) for name in subject.inputs], warm_up=False)
    return journal


def speech2text_of(subject, **options):
    shared = {"draft_depth": 0, "ctc_weight": 0.0, "lm_weight": 0.0}
    return Speech2Text(subject.config, subject.weights, **shared, **options)


@pytest.mark.usefixtures("warm")
def test_processes_write_the_texts_of_speech2text(utterances):
    options = "--contestants", FASTER_WHISPER, OURS, "--weights", FLOAT32
    journal = run(utterances, ways_of(utterances, *options))
    assert [*journal.left_out] == [f"{FASTER_WHISPER}, {FLOAT32}"]  # it cannot load
    searches = {GREEDY: {"search": "greedy"}, BEAM5: {"beam_size": 5, "patience": 1.0}}
    for search, options in searches.items():
        alone = speech2text_of(utterances, **options)
        for name in utterances.inputs:
            expected = alone(utterances.read_input(name))[0][0]
            rows = [row for row in journal.rows if row.names == (name,)]
            timed = {row.way.drafts: row.timed for row in rows if row.way.search == search}
            assert {*timed} == {BASELINE, HEADS, CTC}
            results = {drafts: one.results[0] for drafts, one in timed.items()}
            assert {result.text for result in results.values()} == {expected}
            plain, heads = (results[drafts].counts for drafts in (BASELINE, HEADS))
            assert plain["decoder_calls"] == alone.statistics.decoder_calls
            assert plain["decoder_calls"] >= heads["decoder_calls"]
            assert plain["tokens"] == heads["tokens"]
            assert timed[BASELINE].encoder_seconds > 0 < timed[BASELINE].decoder_seconds


@pytest.mark.usefixtures("warm")
def test_processes_write_the_segments_of_transcribe(recording):
    options = "--searches", "greedy", "--weights", FLOAT32, "--contestants", OURS, "--drafters"
    (way,) = ways_of(recording, "--batch_sizes", "1", *options)
    (row,) = run(recording, [way], fallback=True).rows
    alone = speech2text_of(recording, search="greedy")
    expected, (result,) = alone.transcribe(recording.read_input("one")), row.timed.results
    fields = attrgetter("start_s", "end_s", "text", "temperature")
    written = [*map(fields, result.segments)]
    assert [*map(fields, expected)] == written != []
    assert any(temperature > 0 for *_, temperature in written)
    assert result.counts["decoder_calls"] == alone.statistics.decoder_calls
    assert row.timed.encoder_seconds > 0 < row.timed.decoder_seconds


def test_weights_under_openais_names(tmp_path, utterances):
    whisper = pytest.importorskip("whisper")
    subject = SpeechSubject(tmp_path, "tiny", [], "", "", "en")
    save_tiny_whisper(subject.hugging_face, encoder_layers=2, widening=4)  # as in OpenAI's
    contestant = base.CONTESTANTS[base.SPEECH][OPENAI_WHISPER]
    transcriber = contestant.build(subject, FLOAT32, Setup(threads=1))
    samples = utterances.read_input("one")
    features = whisper.log_mel_spectrogram(whisper.pad_or_trim(samples), 80)[None]
    original = WhisperModel.from_pretrained(subject.hugging_face).eval()
    tokens = torch.tensor([[50258, 50259, 50359, 50363, 11, 12]])
    with torch.no_grad():
        expected = original(features, decoder_input_ids=tokens).last_hidden_state
        expected = expected @ original.decoder.embed_tokens.weight.T
        logits = transcriber.model(features, tokens)
    assert torch.allclose(logits, expected, atol=1e-4)


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
    build = base.CONTESTANTS[base.SPEECH][base.OPENVINO].build
    with pytest.raises(FileNotFoundError, match="optimum-cli: missing; make it with tools"):
        build(subject, INT8, Setup())
    script = '#!/bin/sh\nfor last; do :; done\nmkdir "$last"\necho "$@" > "$last/log"\n'
    write_script(tmp_path / "openvino" / "bin" / "optimum-cli", script)
    for _ in range(2):  # the second one fails if the folder is made again
        contestant = build(subject, INT8, Setup(threads=1))
    assert "--weight-format int8" in (tmp_path / "openvino_int8" / "log").read_text()
    threads = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1}
    package.WhisperPipeline.assert_called_with(tmp_path / "openvino_int8", "CPU", **threads)
    timed = contestant.transcribe(Way(base.OPENVINO, INT8, BEAM5), samples := np.zeros(9))
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
    contestant = base.CONTESTANTS[base.SPEECH][base.WHISPER_CPP].build(subject, FLOAT16, Setup())
    for search, beam_size in ((GREEDY, None), (BEAM5, 5)):
        timed = contestant.transcribe(Way(base.WHISPER_CPP, FLOAT16, search), np.zeros(9))
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
    report = {"kind": base.LENGTHS, "title": "T", "details": "D", "machine": MACHINE, "timed": True}
    report |= {"left_out": {}, "rows": [row | {"search": search} for search in (GREEDY, BEAM5)]}
    write_report(report, tmp_path / "x.md")
    text = (tmp_path / "x.md").read_text()
    assert "0.5 s [ms]|2 s [ms]|" in text and "|ours, int8|2.00|20|31|" in text
    assert min(matplotlib.image.imread(tmp_path / "x.png").shape[:2]) > 150
