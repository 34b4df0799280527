"""The log lines of ESPnet's real-time factor, one utterance or several at a time."""

import logging
from datetime import datetime

import pytest
from job_log import espnet_seconds, log_to

from espnet_medusa.inference.decoding import log_decoded
from espnet_medusa.recipe.rtf import calculate_rtf


@pytest.fixture
def log(tmp_path):
    """A logger and its file."""
    path = tmp_path / "asr_inference.1.log"
    with log_to(path, log_decoded.__module__) as logger:
        yield logger, path


def test_a_batch_counts_once_in_espnets_script_and_in_ours(log):
    path = log[1]
    began = datetime(2026, 11, 21, 1, 0, 0).timestamp()
    for batch, (rows, seconds) in enumerate([(1, 0.7), (7, 2.0), (3, 1.3)]):
        share = seconds / rows
        for row in range(rows):
            started = began + 100 * batch + row * share
            log_decoded(16000 * (row + 1), f"t{row}", started, share)
    utterances, _, seconds = espnet_seconds(path)
    assert utterances == 11 and seconds == pytest.approx(4.0, abs=0.005)
    ours = calculate_rtf([path], 16000)
    assert (ours.utterances, ours.audio_s) == (11, 1 + 28 + 6)
    assert ours.decoding_s == pytest.approx(seconds)


def test_lines_carry_the_time_of_the_share(log):
    path = log[1]
    began = datetime(2026, 11, 21, 1, 0, 59).timestamp() + 0.25
    log_decoded(8000, "a b", began, 1.5)
    first, second = path.read_text().splitlines()
    assert first.startswith("2026-11-21 01:00:59,250 (")
    assert first.endswith(" INFO: speech length: 8000")
    assert second.startswith("2026-11-21 01:01:00,750 (") and second.endswith(
        " INFO: best hypo: a b"
    )


def test_a_quiet_logger_stays_quiet(log):
    logger, path = log
    logger.setLevel(logging.WARNING)
    log_decoded(8000, "a", 0.0, 1.0)
    assert path.read_text() == ""
