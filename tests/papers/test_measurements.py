"""Intervals, parameter counts and bins of length, by hand-made values."""

import numpy as np
import pytest
import torch
from exp_folders import write_score
from safetensors.torch import save_file

from espnet_medusa.errors import InputError
from espnet_medusa.papers.figures import LengthBin, bin_speedups, plot_speedup_by_length
from espnet_medusa.papers.markdown import estimate_cell, millions
from espnet_medusa.papers.measured import error_rate
from espnet_medusa.papers.parameters import Parameters, count_parameters
from espnet_medusa.papers.spread import Estimate, ratio_of_sums


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


def test_cells():
    assert estimate_cell(None) == "-"
    assert estimate_cell(Estimate(1.0)) == "1.00"
    assert estimate_cell(Estimate(4.049, 3.3, 5.0)) == "4.05 [3.30, 5.00]"
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
def test_checkpoints_that_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="no such checkpoint"):
        count_parameters(tmp_path / name)
    (tmp_path / name).write_bytes(b"no weights, only some bytes")
    with pytest.raises(InputError, match=name):
        count_parameters(tmp_path / name)


def test_bins_of_length():
    tokens = np.array([0, 4, 9, 10, 19, 19, 25])
    speedups = np.array([1.0, 2.0, 3.0, 5.0, 6.0, 9.0, 4.0])
    assert bin_speedups(tokens, speedups, 10) == [
        LengthBin(0, 9, 3, 1.5, 2.0, 2.5),
        LengthBin(10, 19, 3, 5.5, 6.0, 7.5),
    ]
    assert bin_speedups(tokens, speedups, 5) == []


def test_plot_shows_labels_bins_and_values(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("espnet_medusa.papers.figures.pyplot.close", lambda f: drawn.update(f=f))
    bins = [LengthBin(0, 9, 3, 1.5, 2.0, 2.5), LengthBin(10, 19, 4, 2.0, 3.0, 3.5)]
    panels = {"one": {"Linear": bins}, "two": {"Linear": bins[1:], "Block": bins}}
    path = plot_speedup_by_length(panels, tmp_path / "images" / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    left, right = drawn["f"].axes
    assert (left.get_title(), right.get_title()) == ("one", "two")
    assert left.get_ylabel() == "speedup over plain decoding"
    assert left.get_xlabel() == right.get_xlabel() == "tokens of the utterance"
    assert [label.get_text() for label in left.get_xticklabels()] == ["0-9\nn=3", "10-19\nn=4"]
    line, lower, upper = left.containers[0].lines[0], *left.containers[0].lines[1]
    assert list(line.get_ydata()) == [2.0, 3.0]
    assert list(lower.get_ydata()) == [1.5, 2.0] and list(upper.get_ydata()) == [2.5, 3.5]
    (legend,) = drawn["f"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["Linear", "Block"]
    assert right.containers[0].lines[0].get_xdata()[0] == pytest.approx(1 - 0.06)


def test_no_panels_no_plot(tmp_path):
    assert plot_speedup_by_length({}, tmp_path / "plot.png") is None
    assert not (tmp_path / "plot.png").exists()
