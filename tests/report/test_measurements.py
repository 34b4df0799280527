"""Ratios, intervals and parameter counts, by hand-made values."""

import numpy as np
import pytest
import torch
from exp_folders import write_decoding, write_espnet_decoding, write_eta, write_score
from safetensors.torch import save_file

from espnet_medusa.errors import InputError
from espnet_medusa.report.columns import COLUMNS
from espnet_medusa.report.decodings import find_decodings, find_espnet_decodings, timings_by_id
from espnet_medusa.report.measures import (
    Estimate,
    Latency,
    Parameters,
    SameTexts,
    acceptance,
    calls_known,
    calls_per_word,
    count_parameters,
    draft_milliseconds,
    error_rate,
    estimate_cell,
    latency,
    millions,
    per_utterance,
    ratio_of_sums,
    same_texts,
    set_ratio,
    speedup,
)
from espnet_medusa.report.plan import System, TablePlan
from espnet_medusa.report.published import read_corpora
from espnet_medusa.report.rows import measure_rows


def test_ratio_and_its_interval():
    random = np.random.default_rng(1)
    below = np.ones(400)
    above = random.normal(3.0, 0.5, 400)
    estimate = ratio_of_sums(above, below)
    assert estimate.value == pytest.approx(above.mean())
    # The interval of a mean: 1.96 standard errors on either side.
    error = above.std() / 20
    assert estimate.low == pytest.approx(above.mean() - 1.96 * error, abs=0.2 * error)
    assert estimate.high == pytest.approx(above.mean() + 1.96 * error, abs=0.2 * error)
    assert estimate == ratio_of_sums(above, below)


def test_ratio_weighs_utterances_by_length():
    assert ratio_of_sums(np.array([1, 9]), np.array([10, 10])) == Estimate(0.5)
    assert ratio_of_sums(np.array([1.0]), np.array([0.0])) is None
    equal = ratio_of_sums(np.full(10, 6.0), np.full(10, 3.0))
    assert equal == Estimate(2.0, 2.0, 2.0)


def test_error_rate_with_and_without_alignments(tmp_path):
    counts = [(3, 1, 0, 0)] * 10 + [(4, 0, 0, 1)] * 10
    write_score(tmp_path, "wer", counts)
    estimate = error_rate(tmp_path / "score_wer" / "result.txt")
    assert estimate.value == pytest.approx(100 * 20 / 80)
    assert estimate.low == estimate.high == pytest.approx(25.0)  # each has one error in four
    path = tmp_path / "result.txt"
    path.write_text("| Sum/Avg | 2 8 | 75.0 12.5 12.5 0.0 25.4 50.0 |\n")
    assert error_rate(path) == Estimate(25.4)
    assert error_rate(tmp_path / "nonesuch") is None
    path.write_text("empty\n")
    with pytest.raises(ValueError, match="no `Sum/Avg` line"):
        error_rate(path)


def test_tied_embeddings_count_once_in_an_average(tmp_path):
    rows = torch.randn(7, 3)
    names = ("decoder.llama.model.embed_tokens.weight", "decoder.llama.lm_head.weight")
    path = tmp_path / "average.pth"
    for other, expected in ((rows.clone(), 21), (rows + 1, 42)):
        torch.save(dict(zip(names, (rows, other), strict=True)), path)
        assert count_parameters(path).total == expected


def test_calls_per_word_once_scored(tmp_path):
    keys = [f"u{number}" for number in range(12)]
    folder = write_decoding(tmp_path, "tag", "test", dict.fromkeys(keys, 1.0), calls=4)
    assert calls_per_word(folder / "statistics.json") is None
    # 12 utterances of 4 calls; 8 words in the references, and 7 in the hypotheses.
    write_eta(folder, dict.fromkeys(keys, 8), 7)
    estimate = calls_per_word(folder / "statistics.json")
    assert [estimate.value, estimate.low, estimate.high] == pytest.approx([8 / 15] * 3)


def test_calls_per_word_counts_words_of_the_set_and_of_empty_texts(tmp_path):
    folder = write_decoding(tmp_path, "tag", "test", {"a": 1.0, "b": 1.0}, calls=3)
    write_eta(folder, {"a": 9, "b": 0}, 0)
    assert calls_per_word(folder / "statistics.json") == Estimate(2 * 6 / 9)
    write_eta(folder, {"a": 0, "b": 0}, 0)
    assert calls_per_word(folder / "statistics.json") is None


def test_calls_per_word_has_the_interval_of_a_ratio_over_utterances(tmp_path):
    words = {f"u{number:02d}": 2 + number % 7 for number in range(40)}
    folder = write_decoding(tmp_path, "tag", "test", dict.fromkeys(words, 1.0), calls=5)
    write_eta(folder, words, 4)
    expected = ratio_of_sums(np.full(40, 10), np.array(list(words.values())) + 4)
    estimate = calls_per_word(folder / "statistics.json")
    measured = [estimate.value, estimate.low, estimate.high]
    assert measured == pytest.approx([expected.value, expected.low, expected.high])
    assert estimate.low < estimate.value < estimate.high


def test_ratios_of_a_set(tmp_path):
    write_decoding(tmp_path, "plain", "test", {"a": 3.0, "b": 9.0})
    write_decoding(tmp_path, "quick", "test", {"a": 1.0, "c": 5.0}, tokens=12, calls=4)
    plain, quick = find_decodings([tmp_path])
    assert set_ratio(quick, "tokens", "decoder_calls") == Estimate(3.0)
    # Half of the seconds are the search's: 3 of 20 s.
    assert set_ratio(quick, "decoder_seconds", "audio_seconds") == Estimate(0.15)
    assert set_ratio(quick, "decoder_seconds", "words") is None
    assert speedup(quick, plain, "decoder_seconds") == Estimate(3.0)
    assert speedup(plain, plain, "decoder_seconds") == Estimate(1.0)
    assert speedup(quick, None, "decoder_seconds") is None


def test_drafts_of_a_set(tmp_path):
    write_decoding(tmp_path, "plain", "test", {"a": 3.0, "b": 9.0})
    # Two calls drafted seven steps; four were accepted. Each call evaluated five nodes.
    counts = dict(nodes=20, drafted=[2, 2, 2, 1], accepted=[2, 1, 1, 0])
    more = dict(draft_calls=6, draft_nodes=9, draft_seconds=0.25)
    write_decoding(tmp_path, "quick", "test", {"a": 1.0, "b": 5.0}, calls=4, **counts, **more)
    plain, quick = find_decodings([tmp_path])
    assert per_utterance(quick, "decoder_calls") == Estimate(4.0)
    assert set_ratio(quick, "nodes", "decoder_calls") == Estimate(5.0)
    assert acceptance(quick).value == pytest.approx(100 * 4 / 7)
    assert per_utterance(quick, "draft_calls") == Estimate(6.0)
    assert draft_milliseconds(quick) == Estimate(250.0)
    assert acceptance(plain) is draft_milliseconds(plain) is None
    assert per_utterance(plain, "draft_calls") is None


def test_drafting_seconds_without_drafts_do_not_count(tmp_path):
    write_decoding(tmp_path, "plain", "test", {"a": 3.0}, draft_seconds=0.1)
    (plain,) = find_decodings([tmp_path])
    assert draft_milliseconds(plain) is None


def test_latency_is_the_median_and_the_ninetieth_percentile(tmp_path):
    seconds = {f"u{number:02d}": 0.001 * number for number in range(1, 12)}
    write_decoding(tmp_path, "plain", "test", seconds)
    (plain,) = find_decodings([tmp_path])
    measured = latency(plain)
    assert (measured.median, measured.p90) == pytest.approx((6.0, 10.0))
    plain.utterances["u01"].total_seconds = 0.0
    assert latency(plain) is None


def test_same_texts(tmp_path):
    write_decoding(tmp_path, "plain", "test", {"a": 3.0, "b": 9.0, "c": 1.0})
    folder = write_decoding(tmp_path, "quick", "test", {"a": 1.0, "b": 5.0, "d": 1.0})
    (folder / "text").write_text("a words\nb other\nd words\n")
    plain, quick = find_decodings([tmp_path])
    assert same_texts(quick, plain) == SameTexts(1, 2)
    assert same_texts(plain, plain) == SameTexts(3, 3)
    assert same_texts(quick, None) is None


def test_calls_are_known_if_each_utterance_has_calls_or_tokens(tmp_path):
    write_decoding(tmp_path, "plain", "test", {"a": 3.0, "b": 9.0}, tokens=5, calls=2)
    (plain,) = find_decodings([tmp_path])
    assert calls_known(plain)
    plain.utterances["b"].decoder_calls = 0
    assert calls_known(plain), "CTC alone may have decided"
    plain.utterances["b"].tokens = 0
    assert not calls_known(plain)
    plain.utterances.clear()
    assert not calls_known(plain)


def test_no_calls(tmp_path):
    """CTC decided everything: the number of calls is 0, and tokens per call are not measured."""
    system = System("CTC", "asr_x", "ctc_first")
    plan = TablePlan("T", {"test": "test"}, {"ctc": system}, "ctc")
    folder = write_decoding(tmp_path / "asr_x", "ctc_first", "test", {"a": 1.0}, tokens=5, calls=0)
    (row,) = measure_rows(plan, find_decodings([folder.parents[1]]), read_corpora())
    assert (row.values["calls"], row.values["calls_per_utterance"]) == (0, Estimate(0.0))
    assert all(row.values[name] is None for name in ("tokens_per_call", "nodes_per_call", "eta"))
    write_eta(folder, {"a": 4}, 4)
    assert calls_per_word(folder / "statistics.json") == Estimate(0.0)


def test_decodings_by_espnets_command(tmp_path):
    write_decoding(tmp_path, "ours", "test", {"a": 1.0, "b": 2.0, "c": 3.0})
    write_espnet_decoding(tmp_path, "espnet", "test", [{"b": 4.0, "a": 3.0}, {"c": 0.5}])
    write_espnet_decoding(tmp_path, "espnet", "org/dev", [{"x": 2.0}])
    (ours,) = find_decodings([tmp_path])
    dev, espnet = find_espnet_decodings(tmp_path)
    assert (espnet.tag, espnet.test_set, dev.test_set) == ("espnet", "test", "org/dev")
    assert {key: item.total_seconds for key, item in espnet.utterances.items()} == {
        "a": 3.0, "b": 4.0, "c": 0.5,
    }  # fmt: skip
    assert latency(espnet) == Latency(3000.0, pytest.approx(3800.0))
    assert not calls_known(espnet) and same_texts(ours, espnet) == SameTexts(3, 3)
    # 7.5 s against 6 s; its search alone is not known.
    assert speedup(ours, espnet, "total_seconds") == Estimate(1.25)
    assert speedup(ours, espnet, "decoder_seconds") is None
    assert speedup(espnet, espnet, "decoder_seconds") is None


def test_seconds_missing_from_logs(tmp_path):
    def read_seconds(logs):
        return {key: timing.seconds for key, timing in timings_by_id(logs).items()}

    assert read_seconds(tmp_path / "nonesuch") == {}
    folder = write_espnet_decoding(tmp_path, "x", "test", [{"a": 1.0, "b": None}, {"c": 3.0}])
    logs = folder / "logdir"
    assert read_seconds(logs) == {"a": 1.0, "c": 3.0}
    (espnet,) = find_espnet_decodings(tmp_path)
    assert latency(espnet) is None
    # The log has more utterances than the job has results: they cannot be matched.
    log = logs / "asr_inference.1.log"
    log.write_text(2 * log.read_text())
    assert read_seconds(logs) == {"c": 3.0}
    log.unlink()
    assert read_seconds(logs) == {"c": 3.0}


def test_each_column_of_a_measured_row(tmp_path):
    assert {column.cell(None) for column in COLUMNS.values()} == {"-"}
    plan = TablePlan("T", {"test": "test"}, {"x": System("X", "asr_x", "plain")}, "x")
    folder = write_decoding(tmp_path / "asr_x", "plain", "test", {"a": 1.0}, tokens=5, calls=2)
    (row,) = measure_rows(plan, find_decodings([folder.parents[1]]), read_corpora())
    assert list(row.values) == list(COLUMNS)
    assert COLUMNS["calls"].cell(0) == "0" and COLUMNS["calls"].cell(12345) == "12345"
    assert (
        COLUMNS["decoder_rtf"].cell(Estimate(0.01234, 0.012, 0.0131)) == "0.0123 [0.0120, 0.0131]"
    )


def test_cells():
    assert estimate_cell(None) == "-"
    assert estimate_cell(Estimate(1.0)) == "1.00"
    assert estimate_cell(Estimate(4.049, 3.3, 5.0)) == "4.05 [3.30, 5.00]"
    assert COLUMNS["latency"].cell(Latency(21.04, 134.6)) == "21.0 (p90 135)"
    assert COLUMNS["same_text"].cell(SameTexts(119, 120)) == "119/120"
    assert COLUMNS["acceptance"].cell(Estimate(87.66, 80.0, 90.04)) == "87.7 [80.0, 90.0]"
    assert [millions(count) for count in (3.4e6, 39.2e6, 1.54331e9)] == ["3.40", "39.2", "1543"]


def test_parameters_of_a_state_dict(tmp_path):
    shared = torch.zeros(5, 4)
    weights = {
        "decoder.embed.weight": shared,
        "decoder.output.weight": shared,
        "decoder.heads.block.weight": torch.zeros(3),
        "decoder.original_last_layer.weight": torch.zeros(100),
        "encoder.weight": torch.zeros(7, dtype=torch.bfloat16),
        "decoder.token_counts": torch.zeros(50, dtype=torch.long),
    }
    torch.save(weights, tmp_path / "model.pth")
    torch.save({"weight": torch.zeros(11)}, tmp_path / "draft.pth")
    assert count_parameters(tmp_path / "model.pth") == Parameters(30, heads=3)
    assert count_parameters(tmp_path / "model.pth", tmp_path / "draft.pth") == Parameters(41, 3, 11)
    del weights["decoder.output.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    assert count_parameters(tmp_path / "model.safetensors") == Parameters(30, heads=3)


@pytest.mark.parametrize("name", ["model.pth", "model.safetensors"])
def test_bad_checkpoints_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="no such checkpoint"):
        count_parameters(tmp_path / name)
    (tmp_path / name).write_bytes(b"no weights, only some bytes")
    with pytest.raises(InputError, match=name):
        count_parameters(tmp_path / name)
