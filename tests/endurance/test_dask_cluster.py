"""Parts of the cluster's check."""

import dask_cluster
import pytest
from dask_cluster import SimulatedDecoder, Watched, differing_files

from espnet_medusa.inference.job import decode_job
from espnet_medusa.inference.journal import Journal
from espnet_medusa.kaldi.table import read_table


def test_utterances_are_repeated_under_new_names(tmp_path):
    (tmp_path / "wav.scp").write_text("a a.wav\nb b.wav\n")
    (tmp_path / "utt2num_samples").write_text("a 100\nb 200\n")
    table = read_table(dask_cluster.repeat_utterances(tmp_path, 5, tmp_path / "new"))
    assert sorted(table.values()) == ["a.wav"] * 3 + ["b.wav"] * 2 and len(table) == 5
    samples = read_table(tmp_path / "new" / "utt2num_samples")
    assert {key: f"{'ab'[int(samples[key]) // 200]}.wav" for key in table} == table


def test_a_simulated_job_is_recorded_and_watched(tmp_path):
    job, hours = dask_cluster.simulated_job(40, tmp_path)
    assert 40 * 2 / 3600 < hours < 40 * 30 / 3600
    calls = []
    watched = Watched(SimulatedDecoder(), {10: lambda: calls.append(len(watched.times))})
    assert decode_job(watched, job, Journal(tmp_path / "one", {})) == 0
    assert calls == [10] and dask_cluster.journal_lines(tmp_path / "one") == 40
    decode_job(SimulatedDecoder(), job, Journal(tmp_path / "other", {}))
    assert differing_files(tmp_path / "one", tmp_path / "other") == []
    (tmp_path / "other" / "1best_recog" / "score").write_text("")
    assert differing_files(tmp_path / "one", tmp_path / "other") == ["1best_recog/score"]


def test_throughput_counts_after_the_first_tenth():
    times = [0.0, 100.0, *(100.5 + 0.5 * number for number in range(18))]
    assert Watched(SimulatedDecoder(), times=times).throughput() == pytest.approx(17 / 8.5)
