"""Ratios, intervals and parameter counts, by hand-made values; error rates; the environment."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import cases
from exp_folders import write_decoding, write_espnet_decoding, write_eta, write_score
from refusals import assert_refused
from safetensors.torch import save_file

from espnet_medusa.data.kaldi.table import write_table
from espnet_medusa.recipes.report import measures
from espnet_medusa.recipes.report.columns import COLUMNS
from espnet_medusa.recipes.report.decodings import (
    find_decodings,
    find_espnet_decodings,
    timings_by_id,
)
from espnet_medusa.recipes.report.incomplete import IncompleteSets
from espnet_medusa.recipes.report.measures import Estimate, Latency, Parameters, count_parameters
from espnet_medusa.recipes.report.plan import System, TablePlan
from espnet_medusa.recipes.report.published import read_corpora
from espnet_medusa.recipes.report.results import comparison_markdown, results_markdown
from espnet_medusa.recipes.report.rows import measure_rows
from espnet_medusa.recipes.scoring.box_table import parse_sum

GOLDEN = Path(__file__).parents[1] / "scoring" / "golden"  # printed by NIST sclite


def interval(estimate: Estimate) -> list[float]:
    return [estimate.value, estimate.low, estimate.high]


def test_ratio_and_its_interval():
    below = np.ones(400)
    above = np.random.default_rng(1).normal(3.0, 0.5, 400)
    estimate = measures.ratio_of_sums(above, below)
    # The interval of a mean: 1.96 standard errors on either side.
    mean, error = above.mean(), above.std() / 20
    expected = [mean, mean - 1.96 * error, mean + 1.96 * error]
    assert interval(estimate) == pytest.approx(expected, abs=0.2 * error)
    assert estimate.value == pytest.approx(mean)
    assert estimate == measures.ratio_of_sums(above, below)
    # Long utterances weigh more.
    assert measures.ratio_of_sums(np.array([1, 9]), np.array([10, 10])) == Estimate(0.5)
    assert measures.ratio_of_sums(np.array([1.0]), np.array([0.0])) is None
    assert measures.ratio_of_sums(np.full(10, 6.0), np.full(10, 3.0)) == Estimate(2.0, 2.0, 2.0)


def test_error_rate_with_and_without_alignments(tmp_path):
    write_score(tmp_path, "wer", [(3, 1, 0, 0)] * 10 + [(4, 0, 0, 1)] * 10)
    estimate = measures.error_rate(tmp_path / "score_wer" / "result.txt")
    assert estimate.value == pytest.approx(100 * 20 / 80)
    assert estimate.low == estimate.high == pytest.approx(25.0)  # each has one error in four
    path = tmp_path / "result.txt"
    path.write_text("| Sum/Avg | 2 8 | 75.0 12.5 12.5 0.0 25.4 50.0 |\n")
    assert measures.error_rate(path) == Estimate(25.4)
    assert measures.error_rate(tmp_path / "nonesuch") is None


def test_calls_per_word_counts_words_of_the_set_and_of_empty_texts(tmp_path):
    folder = write_decoding(tmp_path, "tag", "test", {"a": 1.0, "b": 1.0}, calls=3)
    write_eta(folder, {"a": 9, "b": 0}, 0)
    assert measures.calls_per_word(folder / "statistics.json") == Estimate(2 * 6 / 9)
    write_eta(folder, {"a": 0, "b": 0}, 0)
    assert measures.calls_per_word(folder / "statistics.json") is None
    # The interval is that of a ratio over utterances.
    words = {f"u{number:02d}": 2 + number % 7 for number in range(40)}
    folder = write_decoding(tmp_path, "other", "test", dict.fromkeys(words, 1.0), calls=5)
    write_eta(folder, words, 4)
    expected = measures.ratio_of_sums(np.full(40, 10), np.array(list(words.values())) + 4)
    estimate = measures.calls_per_word(folder / "statistics.json")
    assert interval(estimate) == pytest.approx(interval(expected))
    assert estimate.low < estimate.value < estimate.high


def test_calls_are_known_if_an_utterance_has_calls_or_tokens(tmp_path):
    seconds = {"a": 3.0, "b": 9.0}
    write_decoding(tmp_path, "plain", "test", seconds, tokens=5, calls=2, draft_seconds=0.1)
    (plain,) = find_decodings(tmp_path)
    assert measures.calls_known(plain)
    assert measures.draft_milliseconds(plain) is None, "nothing was drafted"
    plain.utterances["b"].decoder_calls = 0
    assert measures.calls_known(plain), "CTC alone may have decided"
    plain.utterances["b"].tokens = 0
    assert measures.calls_known(plain), "silence, which is not decoded"
    plain.utterances["a"].decoder_calls = plain.utterances["a"].tokens = 0
    assert not measures.calls_known(plain)
    plain.utterances.clear()
    assert not measures.calls_known(plain)


def test_no_calls(tmp_path):
    """CTC decided everything: the number of calls is 0, and tokens per call are not measured."""
    plan = TablePlan("T", {"test": "test"}, {"ctc": System("CTC", "asr_x", "ctc_first")}, "ctc")
    folder = write_decoding(tmp_path / "asr_x", "ctc_first", "test", {"a": 1.0}, tokens=5, calls=0)
    (row,) = measure_rows(plan, find_decodings(folder.parents[1]), read_corpora(), IncompleteSets())
    assert (row.values["calls"], row.values["calls_per_utterance"]) == (0, Estimate(0.0))
    assert all(row.values[name] is None for name in ("tokens_per_call", "nodes_per_call", "eta"))
    assert list(row.values) == list(COLUMNS)
    write_eta(folder, {"a": 4}, 4)
    assert measures.calls_per_word(folder / "statistics.json") == Estimate(0.0)


@cases(
    ("3 5", "tensor(-20.001, device='cuda:0')", 1),
    ("3 6", "tensor(-20.0)", 0),
    ("3 5", "-20.1", 0),
    (None, None, None),
)
def test_same_nbest_lists(tokens, score, same, tmp_path):
    for tag, second in (("espnet", ("3 5", "tensor(-20.0)")), ("ours", (tokens, score))):
        folder = write_decoding(tmp_path, tag, "test", {"a": 1.0}) / "logdir" / "output.1"
        for rank, row in enumerate([("3 4", "tensor(-1.5)"), second] if second[0] else [], 1):
            for name, value in zip(("token_int", "score"), row, strict=True):
                write_table(folder / f"{rank}best_recog" / name, {"a": value})
    espnet, ours = find_decodings(tmp_path)
    expected = None if same is None else measures.SameTexts(same, 1)
    assert measures.same_nbest(ours, espnet) == expected


def test_seconds_missing_from_logs(tmp_path):
    def read_seconds(logs):
        return {key: timing.seconds for key, timing in timings_by_id(logs).items()}

    assert read_seconds(tmp_path / "nonesuch") == {}
    folder = write_espnet_decoding(tmp_path, "x", "org/dev", [{"b": None, "a": 1.0}, {"c": 3.0}])
    logs = folder / "logdir"
    assert read_seconds(logs) == {"a": 1.0, "c": 3.0}
    for name in ("text", "wav.scp"):  # a data directory, if the folder is a recipe's
        write_table(tmp_path / "data" / "train" / name, {"a": "a"})
    (espnet,) = find_espnet_decodings(tmp_path)
    assert (espnet.tag, espnet.test_set) == ("x", "org/dev")
    assert measures.latency(espnet) is None and not measures.calls_known(espnet)
    # The log has more utterances than the job has results: they cannot be matched.
    log = logs / "asr_inference.1.log"
    log.write_text(2 * log.read_text())
    assert read_seconds(logs) == {"c": 3.0}
    log.unlink()
    assert read_seconds(logs) == {"c": 3.0}


@cases(
    ("wer", Estimate(4.049, 3.3, 5.0), "4.05 [3.30, 5.00]"),
    ("calls", 12345, "12345"),
    ("calls", 0, "0"),
    ("decoder_rtf", Estimate(0.01234, 0.012, 0.0131), "0.0123 [0.0120, 0.0131]"),
    ("latency", Latency(21.04, 134.6), "21.0 (p90 135)"),
    ("acceptance", Estimate(87.66, 80.0, 90.04), "87.7 [80.0, 90.0]"),
)
def test_cells(column, value, expected):
    assert COLUMNS[column].cell(value) == expected


def test_absent_and_large_values():
    assert {column.cell(None) for column in COLUMNS.values()} == {"-"}
    assert [*map(measures.millions, (3.4e6, 39.2e6, 1.54331e9))] == ["3.40", "39.2", "1543"]


def test_parameters_of_a_state_dict(tmp_path):
    names = ("decoder.embed.weight", "decoder.output.weight")
    weights = dict.fromkeys(names, torch.zeros(5, 4)) | {
        "decoder.heads.block.weight": torch.zeros(3),
        "decoder.original_last_layer.weight": torch.zeros(100),
        "decoder.heads.moments": torch.zeros(2, 2),
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
    # Tied embeddings count once, in an average, too.
    rows = torch.randn(7, 3)
    names = ("decoder.llama.model.embed_tokens.weight", "decoder.llama.lm_head.weight")
    for other, expected in ((rows.clone(), 21), (rows + 1, 42)):
        torch.save(dict(zip(names, (rows, other), strict=True)), tmp_path / "average.pth")
        assert count_parameters(tmp_path / "average.pth").total == expected


@pytest.mark.parametrize("name", ["model.pth", "model.safetensors"])
def test_bad_checkpoints_are_refused(tmp_path, name):
    for message in ("no such checkpoint", name):
        assert_refused(message, count_parameters, tmp_path / name)
        (tmp_path / name).write_bytes(b"no weights, only some bytes")


@pytest.mark.parametrize("text", ["", "| Sum/Avg | broken |\n"])
def test_reports_without_the_line_are_named(tmp_path, text):
    (tmp_path / "result.txt").write_text(text)
    assert_refused(r"result\.txt: no `Sum/Avg`", parse_sum, tmp_path / "result.txt")


def test_sclites_reports_are_read():
    row = parse_sum(GOLDEN / "four_speakers" / "result.txt")
    assert (row.sentences, row.words, row.err, row.sentence_err) == ("32", "443", "32.7", "81.3")
    assert parse_sum(GOLDEN / "perfect" / "result.txt").correct == "100.0"


def test_environment_has_espnets_lines_and_the_git_hash(tmp_path, in_folder, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    text = results_markdown([], [comparison_markdown([])])
    assert "## Decoding" not in text
    for name in ("date", "python version", "espnet version", "pytorch version", "Git hash"):
        assert f"\n- {name}: `" in text
    assert "not in a git repository" in text
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*words):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        command = ["git", *identity, "-C", tmp_path, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    git("commit", "--allow-empty", "-m", "x")
    assert f"- Git hash: `{git('rev-parse', 'HEAD')}`\n  - Commit date: `" in results_markdown([])
