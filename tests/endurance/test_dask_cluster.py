"""Parts of the cluster's endurance test by hand."""

import pytest
from dask_cluster import (
    PretendedDecoder,
    Watched,
    differing_files,
    journal_lines,
    pretended_job,
    repeat_utterances,
)

from espnet_medusa.inference.job import decode_job
from espnet_medusa.inference.journal import Journal
from espnet_medusa.kaldi.table import read_table


def test_utterances_are_repeated_under_new_names(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "wav.scp").write_text("a a.wav\nb b.wav\n")
    (data / "utt2num_samples").write_text("a 100\nb 200\n")
    table = read_table(repeat_utterances(data, 5, tmp_path / "new"))
    assert sorted(table.values()) == ["a.wav"] * 3 + ["b.wav"] * 2 and len(table) == 5
    samples = read_table(tmp_path / "new" / "utt2num_samples")
    assert {key: f"{'ab'[int(samples[key]) // 200]}.wav" for key in table} == table


def test_a_pretended_job_is_recorded_and_watched(tmp_path):
    job, hours = pretended_job(40, tmp_path)
    assert 40 * 2 / 3600 < hours < 40 * 30 / 3600
    seen = []
    watched = Watched(PretendedDecoder(), {10: lambda: seen.append(len(watched.times))})
    assert decode_job(watched, job, Journal(tmp_path / "one", {})) == 0
    assert seen == [10] and journal_lines(tmp_path / "one") == 40
    decode_job(PretendedDecoder(), job, Journal(tmp_path / "other", {}))
    assert differing_files(tmp_path / "one", tmp_path / "other") == []
    (tmp_path / "other" / "1best_recog" / "score").write_text("")
    assert differing_files(tmp_path / "one", tmp_path / "other") == ["1best_recog/score"]


def test_throughput_is_that_behind_the_first_tenth():
    watched = Watched(PretendedDecoder())
    watched.times = [0.0, 100.0, *(100.5 + 0.5 * number for number in range(18))]
    assert watched.throughput() == pytest.approx(17 / 8.5)
