"""Figures of hours of audio, and a run of a minute."""

import hours_of_audio
import numpy as np
import pytest
from cases import cases
from experiment import write_samples
from harness import read_rows
from hours_of_audio import Step, furthest_off, growth, join_audio, memory_in_use, peaks, recordings
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from refusals import exit_status

from espnet_medusa.bin import convert


@cases(([100, 100, 100], 0.0), ([100, 90, 99], 0.1), ([100, 104, 90, 93], 0.04), ([100, 50], 0.0))
def test_growth_is_relative_to_the_smallest_before(memory, expected):
    assert growth(memory) == pytest.approx(expected)


def test_peaks_are_those_of_tenths():
    sizes = [(0.11, 5), (0.15, 9), (0.2, 4), (0.29, 8), (0.95, 7), (1.0, 3)]
    steps = [Step(done, 1.0, size, 2 * size) for done, size in sizes]
    assert peaks(steps, "memory_bytes") == [9e-6, 8e-6, 7e-6]
    assert peaks(steps, "resident_bytes") == [18e-6, 16e-6, 14e-6]


def test_memory_in_use_is_allocated_memory():
    before = memory_in_use()
    array = np.ones(50_000_000, np.uint8)
    assert memory_in_use() - before == pytest.approx(array.nbytes, rel=0.02)
    del array
    assert memory_in_use() - before < 1_000_000


def test_estimates_are_compared_with_the_total_time():
    steps = [Step(0.25, 2.0, 1), Step(0.5, 5.5, 1), Step(1.0, 10.0, 1)]
    assert furthest_off(steps) == pytest.approx(0.2)  # 8 s, 11 s, 10 s


def test_a_minute(tmp_path):
    path = save_openai_whisper(openai_whisper(1, end=4.0), tmp_path / "whisper.pt")
    convert.main([str(path), str(tmp_path / "exp"), "--language", "en"])
    write_samples(tmp_path, {"a": noise_and_silence(40, 0), "b": noise_and_silence(40, 1)})
    command = ["--model", tmp_path / "exp", "--data_dir", tmp_path, "--threads", 1]
    command += ["--output", tmp_path / "hours.md", "--table", tmp_path / "checks.md"]
    command += ["--decoder_precision", "float32", "--hours", 75 / 3600]
    # Figures of so short a time may be out of bounds: status 1.
    assert exit_status(hours_of_audio.main, *command) in (0, 1)
    text = (tmp_path / "hours.md").read_text()
    assert "|audio [h]|0.0208333|" in text and "progress off by" in text
    (row,) = read_rows(tmp_path / "checks.md")
    assert "open files, least and most: " in row.found
    assert row.command == "hours_of_audio.py --hours 0.0208333 --threads 1"


def test_audio_is_repeated_and_cut_into_hours(tmp_path, monkeypatch):
    monkeypatch.setattr(hours_of_audio, "HOUR_S", 5.0)
    write_samples(tmp_path, {"a": np.full(32000, 0.25), "b": np.full(64000, 0.5)})
    join_audio(tmp_path, tmp_path / "audio")
    hours = [*recordings(tmp_path / "audio", 2.6)]
    assert [hour.key for hour in hours] == [0, 1, 2]
    values = [[*np.round(4 * hour.samples[8000::16000])] for hour in hours]
    assert values == [[1, 1, 2, 2, 2], [2, 1, 1, 2, 2], [2, 2, 1]]
