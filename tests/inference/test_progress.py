"""Progress without a terminal: only log lines."""

import logging

import pytest

from espnet_medusa.inference import progress


@pytest.fixture
def clock(monkeypatch):
    """A mock clock; the list has the current time."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def test_a_log_gets_one_line_per_minute_and_no_bar(clock, caplog, capsys):
    with caplog.at_level(logging.INFO), progress.Progress(300, 20) as shown:
        for _ in range(280):
            clock[0] += 1
            shown.update()
    assert [record.message for record in caplog.records] == [
        "decoding: 80 of 300 utterances, 03:40 left",
        "decoding: 140 of 300 utterances, 02:40 left",
        "decoding: 200 of 300 utterances, 01:40 left",
        "decoding: 260 of 300 utterances, 00:40 left",
    ]
    assert capsys.readouterr() == ("", "")


def test_a_short_job_logs_nothing(clock, caplog):
    with caplog.at_level(logging.INFO), progress.Progress(3) as shown:
        for _ in range(3):
            shown.update()
    assert not caplog.records


def test_minutes_have_one_decimal(clock, caplog):
    with caplog.at_level(logging.INFO), progress.Progress(9.5, unit="minutes") as shown:
        for count in (0.0, 1.25):
            clock[0] += 60
            shown.update(count)
    assert [record.message for record in caplog.records] == [
        "decoding: 1.2 of 9.5 minutes, 13:12 left"
    ]
