"""Figures of an experiment: files and plotted values."""

import numpy as np
import pytest
from matplotlib import image, pyplot

from espnet_medusa import stages
from espnet_medusa.report import experiment_figures
from espnet_medusa.report.decodings import Decoding
from espnet_medusa.search.statistics import DecodingStatistics


def make_decoding(tmp_path, experiment, tag, heads, calls=4):
    counts = {"decoder_seconds": 0.1 * calls, "total_seconds": 0.2 * calls, "audio_seconds": 1.0}
    counts |= {"drafted": [4] * heads, "accepted": [2] * heads, "words": 3}
    utterances = {f"u{n}": DecodingStatistics(calls, calls, 10 + n, **counts) for n in range(9)}
    return Decoding(tmp_path / f"asr_{experiment}", f"{tag}_asr_model_x", "test", utterances, {})


@pytest.fixture
def plain(tmp_path):
    return make_decoding(tmp_path, "base", "plain", 0, 8)


@pytest.fixture
def drafted(tmp_path):
    return make_decoding(tmp_path, "block", "exact", 2)


@pytest.fixture
def figures(monkeypatch):
    saved = []
    monkeypatch.setattr(experiment_figures, "save", lambda shown, path: saved.append(shown) or path)
    yield saved
    pyplot.close("all")


HEADS = [(kind, head) for kind in ("loss", "acc") for head in (1, 2, 10)]
EPOCHS = {
    epoch: {
        "train": {"loss": 9.0 - epoch, "acc": epoch / 10},
        "valid": {f"{kind}_head{k}": epoch / k for kind, k in HEADS} | {"loss": 8.0, "acc": 0.5},
    }
    for epoch in (1, 2)
}


def test_curves_of_training_validation_and_heads_in_numeric_order(figures, tmp_path):
    experiment_figures.plot_training(EPOCHS, "x", tmp_path / "x.png")
    loss, accuracy = figures[0].axes
    assert [list(line.get_ydata()) for line in loss.lines] == [[8.0, 7.0], [8.0, 8.0]]
    assert [list(line.get_ydata()) for line in accuracy.lines] == [[0.1, 0.2], [0.5, 0.5]]
    assert loss.get_xlabel() == "epoch"
    experiment_figures.plot_heads(EPOCHS, "x", tmp_path / "x.png")
    lines = figures[1].axes[0].lines
    assert [line.get_label() for line in lines] == ["1", "2", "10"]
    assert list(lines[2].get_ydata()) == [0.1, 0.2]


def test_acceptance_bars_are_percent_of_the_drafts(figures, tmp_path, plain, drafted):
    experiment_figures.plot_acceptance([plain, drafted], tmp_path / "x.png")
    assert [bar.get_height() for bar in figures[0].axes[0].patches] == [50.0, 50.0]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["block exact"]


def test_speedup_of_the_decoder(figures, tmp_path, plain, drafted):
    experiment_figures.plot_speedup([plain, drafted], plain, tmp_path / "x.png")
    points = figures[0].axes[0].collections[0].get_offsets()
    np.testing.assert_allclose(points, [[10 + index, 2.0] for index in range(9)])


def test_nothing_to_draw_draws_nothing(tmp_path, plain):
    path = tmp_path / "x.png"
    assert experiment_figures.plot_acceptance([plain], path) is None
    assert experiment_figures.plot_speedup([plain], plain, path) is None
    assert experiment_figures.plot_tokens_per_call([plain], path) is None
    epochs = {1: {"train": {"loss": 1.0}, "valid": {"loss": 1.0, "acc_headless": 1.0}}}
    assert experiment_figures.plot_heads(epochs, "x", path) is None
    assert not path.exists()


def test_histogram_counts_all_utterances(figures, tmp_path, drafted):
    experiment_figures.plot_tokens_per_call([drafted], tmp_path / "x.png")
    x, y = figures[0].axes[0].patches[0].get_xy().T
    area = 0.5 * abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1)))
    assert area / np.diff(np.unique(x)).min() == pytest.approx(9)


def test_running_median_of_few_and_many_points():
    x, y = experiment_figures.running_median(np.array([5.0]), np.array([2.0]))
    assert (list(x), list(y)) == ([5.0], [2.0])
    values = np.arange(80.0)[::-1]
    x, y = experiment_figures.running_median(values, 2 * values)
    assert len(x) == 8 and list(x) == sorted(x)
    np.testing.assert_allclose(y, 2 * x)


def test_speedup_over_a_decoding_without_search_times(figures, tmp_path, drafted):
    theirs = make_decoding(tmp_path, "base", "espnet", 0)
    for statistics in theirs.utterances.values():
        statistics.decoder_seconds, statistics.total_seconds = 0.0, 2.4
    drafted.utterances["u0"].tokens = 0
    drafted.utterances["u1"].total_seconds = 0.0
    experiment_figures.plot_speedup([theirs, drafted], theirs, tmp_path / "x.png")
    axis = figures[0].axes[0]
    assert axis.get_ylabel() == "speedup over base espnet"
    points = axis.collections[0].get_offsets()
    # 2.4 s against 0.8 s each.
    np.testing.assert_allclose(points, [[10 + index, 3.0] for index in range(2, 9)])
    assert experiment_figures.plot_speedup([theirs, drafted], drafted, tmp_path / "x.png") is None


def test_curves_go_to_the_experiments_images(tmp_path, capsys):
    log = "INFO: {}epoch results: [train] loss=2.0, acc=0.5, [valid] loss=3.0, acc=0.4\n"
    (tmp_path / "train.log").write_text(log.format(1) + log.format(2))
    stages.main(["plot_training", "--exp_dir", str(tmp_path)])
    path = tmp_path / "images" / "training.png"
    assert capsys.readouterr().out == f"{path}\n"
    pixels = image.imread(path)
    assert min(pixels.shape[:2]) > 300 and pixels[..., :3].std() > 0.05
