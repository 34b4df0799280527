"""The inference command in batches: the outputs of single utterances, RTF, resuming."""

import argparse
import re

import pytest
from experiment import make_experiment, read_lines, write_corpus
from job_log import log_to

from espnet_medusa.bin import asr_inference
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.recipe.rtf import calculate_rtf
from espnet_medusa.search.statistics import read_statistics


@pytest.fixture
def rows(monkeypatch):
    """Numbers of utterances of all calls of ``decode``."""
    seen, decode = [], Speech2Text.decode

    def counted(self, speeches, languages=None):
        seen.append(len(speeches))
        return decode(self, speeches, languages)

    monkeypatch.setattr(Speech2Text, "decode", counted)
    return seen


@pytest.fixture
def log(tmp_path):
    """Log file of the job."""
    path = tmp_path / "asr_inference.1.log"
    with log_to(path):
        yield path


def test_batches_write_what_single_utterances_write(tmp_path, rows, log, caplog):
    experiment = make_experiment(tmp_path / "exp")
    write_corpus(tmp_path, {f"u{number}": 0.3 + 0.04 * (number * 3 % 7) for number in range(7)})
    command = [*experiment.options(), "--search", "greedy", "--maxlenratio", "-12"]
    command += ["--data_path_and_name_and_type", f"{tmp_path / 'wav.scp'},speech,sound"]
    for name, options in {
        "single": [],
        "batch": ["--batch_size", "4"],
        "frames": ["--batch_size", "7", "--max_batch_frames", "115"],
    }.items():
        rows.append(name)
        log.write_text("")
        asr_inference.main([*command, "--output_dir", str(tmp_path / name), *options])
    assert rows == ["single", *[1] * 7, "batch", 4, 3, "frames", 2, 2, 3]
    for name in ("text", "token", "token_int"):
        single = read_lines(tmp_path / "single" / "1best_recog" / name)
        assert [*single] == [f"u{number}" for number in range(7)]
        for folder in ("batch", "frames"):
            assert read_lines(tmp_path / folder / "1best_recog" / name) == single
    times = calculate_rtf([log], 16000)
    statistics = read_statistics(tmp_path / "frames" / "statistics.json").values()
    assert times.utterances == 7
    assert times.audio_s == pytest.approx(sum(row.audio_seconds for row in statistics))
    seconds = sum(row.total_seconds for row in statistics)
    assert times.decoding_s == pytest.approx(seconds, abs=0.002 * 7)
    assert len(re.findall("INFO: best hypo", log.read_text())) == 7
    # Results do not depend on the batch size, so a job resumes with another one.
    caplog.clear()
    with caplog.at_level("INFO"):
        asr_inference.main([*command, "--output_dir", str(tmp_path / "batch")])
    assert "resumed: 7 of 7" in caplog.text


def test_help_accepts_percent_signs_of_espnet(monkeypatch):
    theirs = argparse.ArgumentParser()
    theirs.add_argument("--margin", type=int, default=3, help="%(default)s: 3.19% CER, 100%% (all)")
    monkeypatch.setattr(asr_inference, "get_espnet_parser", lambda: theirs)
    assert "3: 3.19% CER, 100% (all)" in asr_inference.get_parser().format_help()
