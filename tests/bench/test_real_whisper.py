"""A real Whisper from samples to text: figures by hand, processes, weights in others' form."""

import json
import time

import matplotlib.image
import numpy as np
import pytest
import torch
from experiment import make_experiment, training_config
from inputs import Utterance
from peers.contestant import FLOAT32, INT8, Setup
from peers.transcriber import FASTER_WHISPER, OURS, TRANSCRIBERS, Stopwatch, Transcribed
from peers.way import BEAM5, CTC, DRAFTERS, GREEDY, HEADS, PLAIN, Way
from peers.whisper_subject import WhisperSubject
from real_whisper import Asked, compare_real_whisper, make_ways, transcribe
from real_whisper_report import make_report, write_report
from tiny_whisper import save_tiny_whisper
from transformers import WhisperModel

from espnet_medusa.errors import InputError
from espnet_medusa.inference.speech2text import Speech2Text

MACHINE = {"processor": "P", "threads": 2, "versions": {"torch": "2"}}


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """Block heads and CTC on a random base; the peers' forms are not there."""
    folder = tmp_path_factory.mktemp("subject")
    experiment = make_experiment(folder / "exp", **training_config())
    speech = np.random.default_rng(0).standard_normal((2, 16000)) / 10
    subject = WhisperSubject(
        folder, "tiny", str(experiment.config), str(experiment.model), "en", None, [HEADS, CTC],
        ["one", "two"],
    )  # fmt: skip
    subject.save({"one": speech[0], "two": speech[1, :12000]})
    return subject


def test_figures_by_hand(tmp_path):
    utterances = [Utterance(name, None, 4.0, text) for name, text in (("a", "a b"), ("b", "d"))]
    plain, drafted = Way(OURS, INT8, GREEDY), Way(OURS, INT8, GREEDY, drafts=HEADS)
    peer = Way(FASTER_WHISPER, INT8, GREEDY)
    found = {
        peer: {"a": Transcribed("a b", 3.0, 1.0), "b": Transcribed("C", 6.0, 2.0)},
        plain: {"a": Transcribed("A b.", 1.5, 0.5, 4, 4), "b": Transcribed("D", 3.0, 1.0, 2, 2)},
        drafted: {"a": Transcribed("a b", 0.8, 0.2, 1, 4), "b": Transcribed("D", 1.6, 0.4, 1, 2)},
        Way("transformers", FLOAT32, BEAM5): {
            "a": Transcribed("", 1.0, 1.0), "b": Transcribed("d", 1.0, 1.0)
        },
    }  # fmt: skip
    report = make_report("base", utterances, found, {"openai-whisper, float32": "gone"}, MACHINE)
    first, ours, heads, other = report["transcribers"]
    assert [row["label"] for row in report["transcribers"]] == [
        "faster-whisper, int8", "ours, int8", "ours, int8, drafts by heads",
        "transformers, float32",
    ]  # fmt: skip
    assert (first["encoder_ms"], first["decoder_ms"], first["ms"]) == (4500, 1500, 6000)
    assert [row.get("speed") for row in report["transcribers"]] == [1.0, 2.0, 4.0, None]
    assert first["wer"] == pytest.approx(100 / 3) and other["wer"] == pytest.approx(200 / 3)
    assert ours["wer"] == 0  # case and stops do not count
    assert (heads["same_text"], heads["calls"], heads["tokens_per_call"]) == ("1/2", 1.0, 3.0)
    assert "same_text" not in ours and "calls" not in first
    write_report(report, tmp_path / "real_whisper_base.md")
    text = (tmp_path / "real_whisper_base.md").read_text()
    assert "|ours, int8, drafts by heads|1200|300|1500|4.00|1.0|3.00|0.0|1/2|" in text
    assert "|faster-whisper, int8|4500|1500|6000|1.00|||33.3||" in text
    assert "## beam 5\n" in text and "Left out: openai-whisper, float32: gone." in text
    assert json.loads((tmp_path / "real_whisper_base.json").read_text()) == report
    image = matplotlib.image.imread(tmp_path / "real_whisper_base.png")
    assert min(image.shape[:2]) > 150


def test_ways_are_those_that_the_model_has(subject):
    asked = Asked([FASTER_WHISPER, OURS], [INT8], [GREEDY, BEAM5], DRAFTERS)
    ways = [(way.contestant, way.search, way.drafts) for way in make_ways(subject, asked)]
    assert ways == [
        one
        for search in (GREEDY, BEAM5)
        for one in (
            (FASTER_WHISPER, search, PLAIN), (OURS, search, PLAIN),
            (OURS, search, HEADS), (OURS, search, CTC),
        )
    ]  # fmt: skip
    everything = make_ways(subject, Asked([*TRANSCRIBERS], None, [GREEDY], []))
    assert len(everything) == sum(len(entry.weights) for entry in TRANSCRIBERS.values())


def test_processes_write_what_speech2text_writes(subject):
    """Who cannot load is left out, and why is said."""
    asked = Asked([FASTER_WHISPER, OURS], [FLOAT32], [GREEDY, BEAM5], [HEADS, CTC])
    results = transcribe(subject, make_ways(subject, asked), Setup(threads=1))
    assert [way.drafts for way in results.found] == 2 * [PLAIN, HEADS, CTC]
    assert [*results.left_out] == [f"{FASTER_WHISPER}, {FLOAT32}"]
    searches = {GREEDY: {"search": "greedy"}, BEAM5: {"beam_size": 5, "patience": 1.0}}
    for search, options in searches.items():
        alone = Speech2Text(
            subject.config, subject.weights, draft_depth=0, ctc_weight=0.0, lm_weight=0.0,
            **options,
        )  # fmt: skip
        ways = [found for way, found in results.found.items() if way.search == search]
        for name in subject.inputs:
            expected = alone(subject.read_input(name))[0][0]
            assert [found[name].text for found in ways] == 3 * [expected]
            plain, heads, _ = (found[name] for found in ways)
            assert plain.calls == alone.statistics.decoder_calls >= heads.calls
            assert plain.tokens == heads.tokens
            assert plain.encoder_seconds > 0 < plain.decoder_seconds


def test_weights_under_openais_names(tmp_path, subject):
    whisper = pytest.importorskip("whisper")
    made = WhisperSubject(tmp_path, "tiny", "", "", "en", None, [], [])
    save_tiny_whisper(made.hugging_face, encoder_layers=2, widening=4)  # as all of OpenAI's
    transcriber = TRANSCRIBERS["openai-whisper"].build(made, FLOAT32, Setup(threads=1))
    samples = subject.read_input("one")
    features = whisper.log_mel_spectrogram(whisper.pad_or_trim(samples), 80)[None]
    original = WhisperModel.from_pretrained(made.hugging_face).eval()
    tokens = torch.tensor([[50258, 50259, 50359, 50363, 11, 12]])
    with torch.no_grad():
        expected = original(features, decoder_input_ids=tokens).last_hidden_state
        expected = expected @ original.decoder.embed_tokens.weight.T
        found = transcriber.model(features, tokens)
    assert torch.allclose(found, expected, atol=1e-4)


def test_only_on_a_cpu(tmp_path):
    with pytest.raises(InputError, match="--device cuda; allowed with --whisper: cpu"):
        compare_real_whisper(
            tmp_path, tmp_path, "x", None, [], Asked([], None, [], []), Setup("cuda"),
            tmp_path / "x.md", MACHINE,
        )  # fmt: skip


def test_a_stopwatch_adds_up_what_fails_too():
    stopwatch = Stopwatch()

    def work(seconds):
        time.sleep(seconds)
        if seconds > 0.01:
            raise ValueError

    timed = stopwatch.timed(work)
    timed(0.005)
    with pytest.raises(ValueError):
        timed(0.02)
    assert stopwatch.seconds >= 0.025
