"""Figures of the hours by hand, and a minute of it."""

import hours_of_audio
import numpy as np
import pytest
import soundfile
from harness.checks_table import read_rows
from hours_of_audio import (
    Step,
    furthest_off,
    growth,
    join_audio,
    main,
    memory_in_use,
    peaks,
    recordings,
)
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper

from espnet_medusa.bin import convert


@pytest.mark.parametrize(
    ("memory", "expected"),
    [([100, 100, 100], 0.0), ([100, 90, 99], 0.1), ([100, 104, 90, 93], 0.04), ([100, 50], 0.0)],
)
def test_growth_is_from_the_least_before(memory, expected):
    assert growth(memory) == pytest.approx(expected)


def test_peaks_are_those_of_tenths():
    sizes = [(0.11, 5), (0.15, 9), (0.2, 4), (0.29, 8), (0.95, 7), (1.0, 3)]
    steps = [Step(done, 1.0, size, 2 * size) for done, size in sizes]
    assert peaks(steps, lambda step: step.memory_bytes) == [9e-6, 8e-6, 7e-6]
    assert peaks(steps, lambda step: step.resident_bytes) == [18e-6, 16e-6, 14e-6]


def test_memory_in_use_is_what_was_asked_for():
    before = memory_in_use()
    array = np.ones(50_000_000, np.uint8)
    assert memory_in_use() - before == pytest.approx(array.nbytes, rel=0.02)
    del array
    assert memory_in_use() - before < 1_000_000


def test_promises_are_held_against_what_it_took():
    steps = [Step(0.25, 2.0, 1), Step(0.5, 5.5, 1), Step(1.0, 10.0, 1)]
    assert furthest_off(steps) == pytest.approx(0.2)  # 8 s, 11 s, 10 s


def test_a_minute_of_it(tmp_path, capsys):
    path = save_openai_whisper(openai_whisper(1, end=4.0), tmp_path / "whisper.pt")
    convert.main([str(path), str(tmp_path / "exp"), "--language", "en"])
    data = tmp_path / "data"
    data.mkdir()
    for seed, name in enumerate("ab"):
        soundfile.write(data / f"{name}.wav", noise_and_silence(40, seed), 16000)
    (data / "wav.scp").write_text("".join(f"{name} {data / name}.wav\n" for name in "ab"))
    command = ["--model", tmp_path / "exp", "--data_dir", data, "--output", tmp_path / "hours.md"]
    command += ["--decoder_precision", "float32", "--threads", 1]
    command += ["--table", tmp_path / "checks.md"]
    try:
        main([*map(str, command), "--hours", str(75 / 3600)])
    except SystemExit as stop:
        assert stop.code == 1  # so short a time is no measure
    text = (tmp_path / "hours.md").read_text()
    assert "|audio [h]|0.0208333|" in text and "progress off by" in text
    (row,) = read_rows(tmp_path / "checks.md")
    assert "open files, least and most: " in row.found and "--hours 0.0208333" in row.command


def test_audio_goes_round_and_is_cut_into_hours(tmp_path, monkeypatch):
    monkeypatch.setattr(hours_of_audio, "HOUR_S", 5.0)
    for value, seconds in enumerate((2, 4), start=1):
        path = tmp_path / f"{value}.wav"
        soundfile.write(path, np.full(seconds * 16000, value / 4), 16000, subtype="FLOAT")
        with (tmp_path / "wav.scp").open("a") as stream:
            stream.write(f"{value} {path}\n")
    join_audio(tmp_path, tmp_path / "audio")
    found = [*recordings(tmp_path / "audio", 2.6)]
    assert [one.key for one in found] == [0, 1, 2]
    heard = [[*np.round(4 * one.samples[8000::16000])] for one in found]
    assert heard == [[1, 1, 2, 2, 2], [2, 1, 1, 2, 2], [2, 2, 1]]
