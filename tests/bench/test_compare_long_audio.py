"""Long recordings: figures by hand, what goes on where it was, processes, who differs where."""

import json
from dataclasses import replace

import matplotlib.image
import pytest
from inputs import Utterance
from long_audio import PROGRAMS, Transcriptions, get_parser, in_turns, make_ways, transcribe
from long_audio_report import first_difference, make_report, write_report
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from peers.contestant import FLOAT32, INT8, Setup
from peers.transcriber import FASTER_WHISPER, OPENAI_WHISPER, OURS, LongTask, LongTranscribed, Piece
from peers.way import GREEDY, HEADS, PLAIN, Way
from peers.whisper_subject import WhisperSubject

from espnet_medusa.bin import convert
from espnet_medusa.errors import InputError
from espnet_medusa.inference.speech2text import Speech2Text

MACHINE = {"processor": "P", "threads": 2, "versions": {"torch": "2"}}
A, B = Piece(0.0, 2.0, " Red.", -0.1, [(" Red.", 0.5, 1.0)]), Piece(2.0, 4.5, " Blue.", -0.2)


def written(pieces, encoder_s=1.0, decoder_s=1.0, **counts) -> LongTranscribed:
    return LongTranscribed(pieces, encoder_s, decoder_s, **counts)


def test_figures_by_hand(tmp_path):
    recordings = [Utterance("r", None, 1800.0, "red blue"), Utterance("q", None, 1800.0, "red")]
    moved = replace(A, words=[(" Red.", 0.52, 1.04)])
    drawn = replace(A, temperature=0.4)
    found = {
        Way(OPENAI_WHISPER, FLOAT32, GREEDY): {"r": written([A, B]), "q": written([A])},
        Way(FASTER_WHISPER, INT8, GREEDY): {
            "r": written([A], 4.0, 2.0), "q": written([A], 4.0, 2.0)
        },
        Way(FASTER_WHISPER, INT8, GREEDY, 8): {"r": written([A, B]), "q": written([A])},
        Way(OURS, FLOAT32, GREEDY): {
            "r": written([moved, B], calls=6, tokens=6), "q": written([A], calls=2, tokens=3)
        },
        Way(OURS, FLOAT32, GREEDY, drafts=HEADS): {
            "r": written([A, replace(B, end_s=4.52)], calls=2, tokens=6),
            "q": written([drawn], calls=1, tokens=3),
        },
    }  # fmt: skip
    report = make_report("base", recordings, found, {"x": "gone"}, MACHINE, timed=True)
    openai, faster, batched, ours, drafted = report["transcribers"]
    assert [row["seconds"] for row in report["transcribers"]] == [4, 12, 4, 4, 4]
    assert [row["speed"] for row in report["transcribers"]] == [3, 1, 3, 3, 3]
    assert faster["wer"] == pytest.approx(100 / 3) and openai["wer"] == 0
    assert batched["label"] == "faster-whisper, int8, in batches of 8"
    assert "as_openai" not in openai and "as_openai" not in faster
    assert (ours["as_openai"], ours["segments_as_openai"]) == ("2/2", "3/3")
    assert ours["word_times_differ_s"] == pytest.approx(0.01)  # 0.02, 0.04, 0, 0
    assert (drafted["as_openai"], drafted["segments_as_openai"]) == ("1/2", "2/3")
    assert drafted["drawn"] == 1 and "drawn" not in ours
    assert drafted["as_plain"] == "1/2" and drafted["tokens_per_call"] == 3
    (difference,) = report["differences"]
    assert difference["recording"] == "r" and difference["segment"] == 1
    assert difference["average_log_probabilities"] == [-0.2, -0.2]
    write_report(report, tmp_path / "long.md")
    text = (tmp_path / "long.md").read_text()
    assert "2 recordings, 1.00 h; P." in text and "Left out: x: gone." in text
    assert "- r, greedy, ours, float32, drafts by heads, 2.00 s: «Blue.» (-0.20000)" in text
    assert json.loads((tmp_path / "long.json").read_text()) == report
    assert min(matplotlib.image.imread(tmp_path / "long.png").shape[:2]) > 150
    write_report(report | {"timed": False}, tmp_path / "counts.md")
    counted = (tmp_path / "counts.md").read_text()
    assert "[s]|" not in counted.replace("differ by [s] (median)|", "") and ".png" not in counted


@pytest.mark.parametrize(
    ("theirs", "ours", "segment"),
    [([A, B], [A, B], None), ([A, B], [A], 1), ([], [A], 0), ([A], [replace(A, text="one")], 0),
     ([A], [replace(A, start_s=0.004)], None), ([A], [replace(A, start_s=0.01)], 0)],
)  # fmt: skip
def test_where_two_first_differ(theirs, ours, segment):
    found = [one["segment"] for one in first_difference(written(theirs), written(ours))]
    assert found == ([] if segment is None else [segment])


def test_what_is_measured_is_kept(tmp_path):
    journal = tmp_path / "found.jsonl"
    way, kept = Way(OURS, FLOAT32, GREEDY), written([A, B], 2.0, 3.0, calls=4, tokens=5)
    Transcriptions(journal, {"threads": 2}).add(way, "r", kept)
    with journal.open("a") as cut:
        cut.write('{"way": {"con')  # ended in the middle of a line
    again = Transcriptions(journal, {"threads": 2})
    assert again.found == {way: {"r": kept}}
    again.add(way, "s", kept)
    assert not Transcriptions(journal, {"threads": 2}).lacks(way, "s")
    assert not again.lacks(way, "r") and again.lacks(way, "q")
    assert again.lacks(replace(way, drafts=HEADS), "r")
    with pytest.raises(InputError, match="was measured with something else; remove it"):
        Transcriptions(journal, {"threads": 1})


def test_turns_are_of_chance_within_a_recording():
    ways = [Way(OURS, weights, GREEDY) for weights in "abcdef"]
    turns = in_turns([(name, way) for name in "rq" for way in ways])
    assert [name for name, _ in turns] == [*"rrrrrrqqqqqq"]
    first, second = ([way for one, way in turns if one == name] for name in "rq")
    assert set(first) == set(second) == {*ways} and first != second


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """A random Whisper and 35 s of noise; the peers' forms are not there."""
    folder = tmp_path_factory.mktemp("subject")
    path = save_openai_whisper(openai_whisper(1, end=4.0), folder / "whisper.pt")
    convert.main([str(path), str(folder / "exp"), "--language", "en"])
    files = [str(folder / "exp" / name) for name in ("config.yaml", "model.pth")]
    subject = WhisperSubject(folder, "tiny", *files, "en", None, [HEADS], ["one"])
    subject.save({"one": noise_and_silence(35, 0)})
    return subject


def arguments(*options):
    return get_parser().parse_args(["--whisper", "x", "--data_dir", "y", *options])


def test_ways_are_those_that_programs_have(subject):
    ways = make_ways(subject, arguments("--searches", "greedy", "--weights", "int8"))
    assert PROGRAMS == [OPENAI_WHISPER, FASTER_WHISPER, OURS]
    assert {(way.contestant, way.batch_size, way.drafts) for way in ways} >= {
        (FASTER_WHISPER, 1, PLAIN), (FASTER_WHISPER, 8, PLAIN), (OURS, 1, PLAIN), (OURS, 1, HEADS),
    }  # fmt: skip
    assert {way.weights for way in ways if way.contestant != OPENAI_WHISPER} == {INT8}
    assert [way.weights for way in ways if way.contestant == OPENAI_WHISPER] == [FLOAT32]


def test_processes_write_what_transcribe_writes(subject, tmp_path):
    options = arguments(
        *("--searches", "greedy", "--weights", FLOAT32, "--batch_sizes", "1"),
        *("--programs", FASTER_WHISPER, OURS),
    )
    results = Transcriptions(tmp_path / "journal", {})
    peer, own, _ = make_ways(subject, options)
    transcribe(subject, [peer, own], Setup(threads=1), LongTask(fallback=True), results)
    assert [*results.left_out] == [f"{FASTER_WHISPER}, {FLOAT32}"]
    alone = Speech2Text(
        subject.config, subject.weights, search="greedy", draft_depth=0, ctc_weight=0.0,
        lm_weight=0.0,
    )  # fmt: skip
    expected = [
        (one.start_s, one.end_s, one.text, one.temperature)
        for one in alone.transcribe(subject.read_input("one"))
    ]
    found = results.found[own]["one"]
    written = [(one.start_s, one.end_s, one.text, one.temperature) for one in found.pieces]
    assert expected == written != []
    assert any(temperature > 0 for *_, temperature in written)
    assert found.calls == alone.statistics.decoder_calls
    assert found.encoder_seconds > 0 < found.decoder_seconds
