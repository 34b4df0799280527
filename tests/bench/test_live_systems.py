"""Live systems: the virtual clock, delays of words, and our own system on a random Whisper."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import live
import numpy as np
import pytest
import soundfile
from live_delays import confirmed_words, delays, revised_words, words_of
from live_report import MEDIAN, WER, measure, write_table
from live_streams import Stream
from live_systems import worker
from live_systems.base import Event, Files, LiveSystem, Said, Setting, run_stream
from live_systems.ours import Ours
from live_systems.settings import (
    AGREEMENT,
    ESPNET,
    FILE,
    SETTINGS,
    SYSTEMS,
    WHISPER_STREAMING,
    ours,
)
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from refusals import command_refused

from espnet_medusa.inference.speech2text import Speech2Text

RATE_HZ = 16000
FLOAT32 = {"encoder_precision": "float32", "decoder_precision": "float32"}


def event(audio_s, ready_s, confirmed="", tentative=None):
    return Event(audio_s, ready_s, 0.5, 0.25, 2, confirmed, tentative)


# The virtual clock


class Scripted(LiveSystem):
    """Takes ``costs`` seconds per call; writes the number of new samples."""

    def load(self):
        self.now, self.costs = 0.0, iter(self.setting.options["costs"])

    def start(self):
        pass

    def update(self, samples):
        self.now += next(self.costs)
        self.calls += 1
        return Said(f" {len(samples)}")

    def finish(self):
        return replace(self.update([]), tentative="")


def run_scripted(update_s, costs, seconds, rate_hz=10):
    system = Scripted(Files(""), Setting("scripted", update_s, options={"costs": costs}), 1)
    samples, clock = np.zeros(round(seconds * rate_hz)), lambda: system.now
    events = run_stream(system, samples, rate_hz, clock, lambda: 2 * system.now)
    assert [one.calls for one in events] == [1] * len(events)
    assert [one.processor_s for one in events] == pytest.approx([2 * cost for cost in costs])
    assert sum(int(one.confirmed) for one in events) == len(samples)
    return [(one.audio_s, pytest.approx(one.ready_s)) for one in events]


def test_a_fast_system_waits_for_the_audio_of_each_update():
    times = run_scripted(1.0, [0.2, 0.2, 0.2, 0.1], 2.5)
    assert times == [(1.0, 1.2), (2.0, 2.2), (2.5, 2.7), (2.5, 2.8)]


def test_a_slow_system_takes_all_audio_that_has_arrived():
    times = run_scripted(1.0, [1.5, 0.2, 3.0, 0.5, 0.5], 5.0)
    # The second update begins at 2.5 s, the third at 3.5 s, and the fourth at 6.5 s.
    assert times == [(1.0, 2.5), (2.5, 2.7), (3.5, 6.5), (5.0, 7.0), (5.0, 7.5)]


def test_updates_have_whole_numbers_of_samples():
    assert run_scripted(0.7, [0.0] * 4, 2.1)[:3] == [(0.7, 0.7), (1.4, 1.4), (2.1, 2.1)]


def test_without_updates_all_audio_comes_at_once():
    assert run_scripted(float("inf"), [0.0, 2.0], 3.0) == [(3.0, 3.0), (3.0, 5.0)]


# Words and delays


def test_words_have_the_value_of_the_piece_with_their_last_letter():
    pieces = [
        (" Don", 1),
        ("'t stop", 2),
        ("!", 3),
        (" 'Tis well-", 4),
        ("known", 5),
        ("\u2019s.", 6),
    ]
    expected = [("don't", 2), ("stop", 2), ("tis", 4), ("well", 4), ("known's", 6)]
    assert words_of(pieces) == expected


def test_delays_are_those_of_words_that_equal_the_reference():
    reference = [("the", 0.5), ("cat", 1.0), ("sat", 1.5), ("down", 2.0)]
    events = [
        event(1.5, 2.0, " The hat"),  # a substitution
        event(2.5, 3.5, " really sat"),  # an insertion
        event(3.0, 4.0, " down."),
    ]
    found = delays(reference, events)
    assert found == [(1.5, 1.0), (2.0, 1.0), (2.0, 1.0)]
    assert delays(reference, [event(1, 1)]) == delays([], events) == []
    assert delays([("other", 1.0)], events) == []


def test_revised_words_were_shown_and_changed_later():
    events = [
        event(1, 1, "", " the hat"),
        event(2, 2, " The", " cat sat on"),  # "hat" was replaced
        event(3, 3, " cat", " sat"),  # "on" was taken back
        event(4, 4, " sat down", ""),
    ]
    assert revised_words(events) == 2
    assert revised_words([event(1, 1, " the")]) is None
    assert [word for word, _ in confirmed_words(events)] == ["the", "cat", "sat", "down"]


def test_figures_of_a_setting():
    stream = Stream("one", np.zeros(3 * RATE_HZ), "the cat", [("the", 0.5), ("cat", 1.5)], [])
    events = [event(1.0, 1.5, " The", " hat"), event(3.0, 3.5, " cat"), event(3.0, 4.0)]
    setting = Setting("ours", 1.0, "agreement")
    figures = measure(setting, [(stream, events, 300.0)])
    assert figures == {
        WER: 0.0, MEDIAN: 1.5, "mean [s]": 1.5, "95% [s]": pytest.approx(1.95),
        "without computation: median [s]": 1.0, "without computation: mean [s]": 1.0,
        "without computation: 95% [s]": pytest.approx(1.45), "revised words per 100": 50.0,
        "calls per update": 2.0, "ms per update": 500.0, "processor s per s": 0.25,
        "MB at most": 300.0,
    }  # fmt: skip
    whole = replace(setting, update_s=float("inf"))
    assert measure(whole, [(stream, events, 300.0)]).keys() <= figures.keys() - {MEDIAN}
    silent = measure(setting, [(stream, [event(3.0, 3.5)], 300.0)])
    assert silent[WER] == 100.0 and MEDIAN not in silent
    assert (
        write_table([(setting, silent)]).splitlines()[2].startswith("|ours|agreement|1||100.00||")
    )


# Systems


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper") / "whisper.pt"
    return str(save_openai_whisper(openai_whisper(4, end=3.0, text_context=96), path))


def test_each_setting_has_a_system_and_a_name_of_its_own():
    assert {setting.system for setting in SETTINGS} == SYSTEMS.keys()
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    (added,) = live.more_settings(["live_policy=attention,update_seconds=0.7"])
    assert added.options["live"] == {"live_policy": "attention", "update_seconds": 0.7}
    assert (added.update_s, added.policy) == (0.7, "AlignAtt")


def test_our_system_writes_the_text_of_live(whisper):
    options = {"skip_silence": False, "no_speech_threshold": None}
    setting = ours(AGREEMENT, 0.5, model=FLOAT32, live=options)
    samples = noise_and_silence(3.0, 1)
    events = run_stream(Ours(Files(whisper), setting, 1), samples, RATE_HZ)
    model = Speech2Text.from_pretrained(whisper, search="greedy", language="en", **FLOAT32)
    stream, text = model.live(update_seconds=0.5, **options), ""
    taken = [0, *(round(one.audio_s * RATE_HZ) for one in events[:-1])]
    for first, last in zip(taken, taken[1:], strict=False):
        stream.add(samples[first:last])
        if (update := stream.update()) is not None:
            text += "".join(word.text for word in update.confirmed)
    text += "".join(word.text for word in stream.finish().confirmed)
    assert "".join(one.confirmed for one in events) == text != ""
    assert sum(one.calls for one in events) == stream.statistics.decoder_calls > 0


@pytest.fixture
def chapter(tmp_path):
    for number in range(3):
        noise = noise_and_silence(2.0 if number else 31.0, number)
        soundfile.write(tmp_path / f"1-2-{number:04d}.flac", noise, RATE_HZ)
    lines = "".join(f"1-2-{number:04d} THE CAT'S WORDS\n" for number in range(3))
    (tmp_path / "1-2.trans.txt").write_text(lines)
    return tmp_path / "*.trans.txt"


def test_the_bench_writes_a_page_and_resumes(whisper, chapter, tmp_path, monkeypatch, capsys):
    """Workers run in this process; the other systems are left out with the reason."""
    whole = Setting(FILE, float("inf"), options={"model": FLOAT32, "file": {}})
    asked = [ours(AGREEMENT, 0.5, model=FLOAT32), whole, Setting(WHISPER_STREAMING, 1.0)]
    monkeypatch.setattr(live, "SETTINGS", asked)
    runs = []

    def run(command, **_):
        runs.append(command)
        answer = worker.run(json.loads(Path(command[-2]).read_text()))
        Path(command[-1]).write_text(json.dumps(answer))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(live.subprocess, "run", run)
    page = tmp_path / "page.md"
    words = ["--whisper", whisper, "--trans", str(chapter), "--output", str(page)]
    words += ["--records", str(tmp_path / "records"), "--threads", "1"]
    live.main(words)
    first = page.read_text()
    assert "1 streams, 4 s of audio: 1-2." in first  # without the utterance of 31 s
    assert "Left out: whisper_streaming, 1 s: --peers is not given." in first
    record = json.loads((tmp_path / "page.json").read_text())
    assert [row["setting"]["system"] for row in record["rows"]] == ["ours", FILE]
    assert (tmp_path / "page.png").stat().st_size > 0
    live.main(words)
    assert page.read_text() == first and len(runs) == 2
    live.main([*words, "--minutes", "0.01"])  # another stream: the first utterance
    assert "1 streams, 2 s of audio" in page.read_text() and len(runs) == 4
    with command_refused(capsys, "no speech", "--trans"):
        live.main(["--whisper", whisper])


def test_omnisteval_gets_a_time_for_each_word(tmp_path):
    stream = Stream("one", np.zeros(2 * RATE_HZ), "a b", [], [(0.0, 1.0, "a"), (1.0, 1.0, "b")])
    live.write_for_omnisteval([(stream, [event(1.0, 1.5, " A b,")], 0.0)], tmp_path)
    (hypothesis,) = map(json.loads, (tmp_path / "hypotheses.jsonl").read_text().splitlines())
    assert hypothesis == {
        "source": "one", "prediction": "a b", "delays": [1000.0, 1000.0],
        "elapsed": [1500.0, 1500.0], "source_length": 2000.0,
    }  # fmt: skip
    assert (tmp_path / "references").read_text() == "a\nb\n"


def test_windows_of_espnet_are_decoded_one_by_one(whisper):
    pytest.importorskip("espnet2.bin.live", reason="ESPnet 202611")
    from live_systems.ours import ESPnetWindows

    setting = Setting(ESPNET, 20.0, options={"model": FLOAT32})
    system = ESPnetWindows(Files(whisper), setting, 1)
    samples = noise_and_silence(3.0, 2)
    system.size = RATE_HZ  # windows of 1 s
    text = "".join(one.confirmed for one in run_stream(system, samples, RATE_HZ))
    windows = [samples[first : first + RATE_HZ] for first in range(0, len(samples), RATE_HZ)]
    assert (
        text.split() == " ".join(one.results[0][0] for one in system.model.decode(windows)).split()
    )
