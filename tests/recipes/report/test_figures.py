"""Figures of tables and of an experiment: files, plotted values, and the places of labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import cases
from matplotlib import colors, image, pyplot

from espnet_medusa.bin import stage
from espnet_medusa.decoding.search.statistics import DecodingStatistics, write_statistics
from espnet_medusa.recipes.report import experiment_figures, table_figures
from espnet_medusa.recipes.report.decodings import DecodedSet, read_experiments
from espnet_medusa.recipes.report.measures import Estimate, Latency
from espnet_medusa.recipes.report.plan import CallsAndWer, FigurePlan, System, TablePlan
from espnet_medusa.recipes.report.rows import SystemRow
from espnet_medusa.recipes.report.scatter import Panel, Point, plot_scatter, scatter_panels
from espnet_medusa.recipes.report.style import ranks
from espnet_medusa.recipes.report.table_figures import LengthBin, bin_speedups, eta_bars


@pytest.fixture
def drawn(monkeypatch):
    figures = []
    close = pyplot.close
    monkeypatch.setattr("espnet_medusa.recipes.report.style.pyplot.close", figures.append)
    yield figures
    for figure in figures:
        close(figure)


def plot(plan, panels, tmp_path, drawn):
    path = plot_scatter(plan.figure, panels, tmp_path / "images" / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    return drawn[0].axes


def label_boxes(axis):
    """Return the extents of the labels, which must not overlap."""
    boxes = [text.get_window_extent() for text in axis.texts]
    assert sum(first.overlaps(second) for first in boxes for second in boxes) == len(boxes)
    return boxes


def legend_names(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def table(**changes):
    """Two groups with two systems each; K is 2 and 3 in one of them."""
    keys = ("base", "wide2", "wide3", "slim2", "slim_quick")
    points = {
        "wide": {"top-1": {"2": "wide2", "3": "wide3"}},
        "slim": {"top-1": {"2": "slim2"}, "quick": {"2": "slim_quick"}},
    }
    systems = {key: System(key.capitalize(), f"asr_{key}", "exact") for key in keys}
    figure = FigurePlan("wer_against_eta", "F", groups=points, points="K")
    plan = TablePlan("T", {"test": "English", "test_de": "German"}, systems, "base", figure=figure)
    return replace(plan, **changes)


def measured(system, test_set, **values):
    return SystemRow(system, test_set, values=values)


def row(system, test_set, eta, wer):
    return measured(system, test_set, eta=Estimate(eta, eta - 0.1, eta + 0.2), wer=Estimate(wer))


ROWS = [
    row("base", "English", 2.0, 5.0),
    row("wide2", "English", 1.2, 5.0),
    row("wide3", "English", 0.9, 5.5),
    row("slim_quick", "English", 0.8, 6.5),
    SystemRow("slim2", "English", "not run"),
    SystemRow("base", "German", "not run"),
    row("slim_quick", "German", 0.7, 8.0),
    measured("wide2", "German", eta=Estimate(1.0)),
]


def test_bins_of_length():
    tokens = np.array([0, 4, 9, 10, 19, 19, 25])
    speedups = np.array([1.0, 2.0, 3.0, 5.0, 6.0, 9.0, 4.0])
    bins = [LengthBin(0, 9, 3, 1.5, 2.0, 2.5), LengthBin(10, 19, 3, 5.5, 6.0, 7.5)]
    assert bin_speedups(tokens, speedups, 10) == bins
    assert bin_speedups(tokens, speedups, 5) == []


def test_plot_shows_labels_bins_and_values(tmp_path, drawn):
    bins = [LengthBin(0, 9, 3, 1.5, 2.0, 2.5), LengthBin(10, 19, 4, 2.0, 3.0, 3.5)]
    panels = {"one": {"Linear": bins}, "two": {"Linear": bins[1:], "Block": bins}}
    path = table_figures.plot_speedup_by_length(panels, tmp_path / "images" / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    left, right = drawn[0].axes
    assert (left.get_title(), right.get_title()) == ("one", "two")
    assert left.get_ylabel() == "speedup over the baseline"
    assert left.get_xlabel() == right.get_xlabel() == "tokens of the utterance"
    assert [label.get_text() for label in left.get_xticklabels()] == ["0-9\nn=3", "10-19\nn=4"]
    lines = left.containers[0].lines[0], *left.containers[0].lines[1]
    assert [list(line.get_ydata()) for line in lines] == [[2.0, 3.0], [1.5, 2.0], [2.5, 3.5]]
    assert legend_names(drawn[0]) == ["Linear", "Block"]
    assert right.containers[0].lines[0].get_xdata()[0] == pytest.approx(1 - 0.06)


def test_wer_against_eta_of_systems_that_were_run_and_scored():
    wide = [Point("2", 1.2, 5.0), Point("3", 0.9, 5.5)]
    english = {("wide", "top-1"): wide, ("slim", "quick"): [Point("2", 0.8, 6.5)]}
    assert scatter_panels(table(), ROWS) == {
        "English": Panel(english, Point("Base", 2.0, 5.0)),
        "German": Panel({("slim", "quick"): [Point("2", 0.7, 8.0)]}, None),
    }
    assert scatter_panels(table(), ROWS[:1]) == {}  # the baseline alone is no comparison
    assert plot_scatter(table().figure, {}, Path("nowhere")) is None


def test_plot_of_wer_against_eta(tmp_path, drawn):
    english, german = plot(table(), scatter_panels(table(), ROWS), tmp_path, drawn)
    assert (english.get_title(), german.get_title()) == ("English", "German")
    assert english.get_xlabel() == german.get_xlabel() == "decoder calls per word (eta)"
    assert english.get_ylabel() == "WER [%]"
    wide, quick, level, star = split_lines(english)[0]
    assert wide.get_xydata().tolist() == [[1.2, 5.0], [0.9, 5.5]]
    assert star.get_xydata().tolist() == [[2.0, 5.0]] and star.get_marker() == "*"
    assert list(level.get_ydata()) == [5.0, 5.0]
    assert [text.get_text() for text in english.texts] == ["2", "3", "2"]
    assert legend_names(drawn[0]) == ["wide, top-1", "slim, quick", "Base"]
    # A series looks the same in each panel, and its labels have its color.
    (alone,) = split_lines(german)[0]
    assert (alone.get_color(), alone.get_marker()) == (quick.get_color(), quick.get_marker())
    assert wide.get_color() != quick.get_color() and wide.get_marker() != quick.get_marker()
    assert english.texts[2].get_color() == quick.get_color()


def split_lines(axis):
    """Return the lines of data, and the thin lines from labels to their points."""
    lines = axis.get_lines()
    return [[line for line in lines if (line.get_lw() == 0.5) == thin] for thin in (False, True)]


@cases(
    # 10 to 81 ms is a factor above 8, 10 to 79 ms is not; zero has no logarithm.
    ("latency", "ms per utterance (median)", (81.0, 20.0, 10.0), "log"),
    ("latency", "ms per utterance (median)", (79.0, 20.0, 10.0), "linear"),
    ("calls", "decoder calls per utterance", (28.0, 9.0, 0.0), "linear"),
    ("calls", "decoder calls per utterance", (28.0, 9.0, 2.0), "log"),
)
def test_plot_of_wer_against_costs(kind, label, costs, scale, tmp_path, drawn):
    groups = {"heads": {"exact": {"2": "wide2", "3": "wide3"}, "typical": {"2": "slim2"}}}
    plan = table(figure=FigurePlan(f"wer_against_{kind}", "F", groups=groups, points="K"))
    latency = kind == "latency"
    rows = [measured("slim2", "English", wer=Estimate(4.0))]
    for n, (system, cost) in enumerate(zip(("base", "wide2", "wide3"), costs, strict=True)):
        values = {"latency": Latency(cost, 2 * cost)}
        values = values if latency else {"calls_per_utterance": Estimate(cost)}
        rows.append(measured(system, "English", wer=Estimate(5.0 + n), **values))
    panels, (plain, *others) = scatter_panels(plan, rows), costs
    points = [Point(str(k), cost, 4.0 + k) for k, cost in enumerate(others, 2)]
    assert panels == {"English": Panel({("heads", "exact"): points}, Point("Base", plain, 5.0))}
    (axis,) = plot(plan, panels, tmp_path, drawn)
    assert (axis.get_xlabel(), axis.get_ylabel()) == (label, "WER [%]")
    assert (axis.get_xscale(), axis.get_yscale()) == (scale, "linear")
    series, _, star = split_lines(axis)[0]
    assert series.get_xydata().tolist() == [[point.x, point.y] for point in points]
    assert (series.get_linestyle(), series.get_marker()) == ("None" if latency else "-", "o")
    assert star.get_xydata().tolist() == [[plain, 5.0]]
    if latency and scale == "log":
        low, high = axis.get_xlim()
        ticks = zip(axis.get_xticklabels(), axis.get_xticks(), strict=True)
        shown = [tick.get_text() for tick, place in ticks if low <= place <= high]
        assert shown == ["10", "20", "50"]


def test_plot_of_calls_against_the_wer_of_drafts(tmp_path, drawn):
    pairs = {"1": CallsAndWer("wide2", "slim2"), "9": CallsAndWer("wide3", "slim_quick")}
    unscored = {"1": CallsAndWer("wide2", "wide3"), "2": CallsAndWer("slim2", "slim_quick")}
    groups = {"CTC": {"greedy": pairs, "beam": unscored}}
    axes = {"points": "epochs", "wer_of": "the greedy CTC hypothesis"}
    plan = table(figure=FigurePlan("calls_against_wer", "F", groups=groups, **axes))
    rows = [
        measured("base", "English", calls_per_utterance=Estimate(28.0)),
        measured("wide2", "English", wer=Estimate(4.0), calls_per_utterance=Estimate(9.0)),
        measured("wide3", "English", calls_per_utterance=Estimate(4.0)),
        measured("slim2", "English", wer=Estimate(26.0)),
        measured("slim_quick", "English", wer=Estimate(8.0)),
    ]
    panels = scatter_panels(plan, rows)
    points = [Point("1", 26.0, 9.0), Point("9", 8.0, 4.0)]
    assert panels == {"English": Panel({("CTC", "greedy"): points}, Point("Base", None, 28.0))}
    (axis,) = plot(plan, panels, tmp_path, drawn)
    labels = "WER of the greedy CTC hypothesis [%]", "decoder calls per utterance"
    assert (axis.get_xlabel(), axis.get_ylabel()) == labels
    line, level = split_lines(axis)[0]
    assert line.get_xydata().tolist() == [[26.0, 9.0], [8.0, 4.0]] and line.get_linestyle() == "-"
    assert list(level.get_ydata()) == [28.0, 28.0]
    assert legend_names(drawn[0]) == ["CTC, greedy", "Base"]


def test_long_labels_of_points_side_by_side(tmp_path, drawn):
    # Exact drafts: one WER, similar latencies.
    places = [*np.linspace(18.0, 25.0, 8), 40.0]
    points = [Point(f"the drafter no. {n}", x, 5.0) for n, x in enumerate(places)]
    plan = table(figure=FigurePlan("wer_against_latency", "F", groups={"all": {"exact": {}}}))
    panels = {"English": Panel({("all", "exact"): points}, Point("Base", 32.0, 5.0))}
    (axis,) = plot(plan, panels, tmp_path, drawn)
    boxes, inside = label_boxes(axis), axis.get_window_extent()
    assert all(inside.containsx(box.x0) and inside.containsx(box.x1) for box in boxes)
    assert all(inside.containsy(box.y0) and inside.containsy(box.y1) for box in boxes)
    # A line connects each label with its point.
    ends = [line.get_xydata()[1] for line in split_lines(axis)[1]]
    assert np.allclose(ends, [(place, 5.0) for place in places])


def test_labels_of_crowded_points_do_not_cover_each_other_or_points(tmp_path, drawn):
    places = np.random.default_rng(2).normal((1.0, 6.0), (0.3, 1.5), size=(30, 2))
    series = {
        ("wide", "top-1"): [Point("2", *place) for place in places[:15]],
        ("slim", "quick"): [Point("3", *place) for place in places[15:]],
    }
    (axis,) = plot(table(), {"English": Panel(series, Point("Base", 1.0, 6.0))}, tmp_path, drawn)
    boxes = label_boxes(axis)
    assert len(boxes) == 30
    assert not any(box.count_contains(axis.transData.transform(places)) for box in boxes)


def test_plot_of_calls_per_word(tmp_path, drawn):
    groups = {"wide": {"top-1": "wide2"}, "slim": {"top-1": "slim2", "quick": "slim_quick"}}
    bars = eta_bars(table(figure=FigurePlan("calls_per_word", "F", groups=groups)), ROWS)
    sets = ["French", "English", "German"]
    path = table_figures.plot_calls_per_word(sets, bars, tmp_path / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    (axis,) = drawn[0].axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["English", "German"]
    assert axis.get_ylabel() == "decoder calls per word (eta)" and axis.get_ylim()[0] == 0
    shown = {bar.get_x() + bar.get_width() / 2: bar for bar in axis.patches}
    heights = [round(shown[place].get_height(), 9) for place in sorted(shown)]
    assert heights == [2.0, 1.2, 0.8, 1.0, 0.7]
    # Each system has the same place in each test set: German lacks the first one.
    assert [round(place) for place in sorted(shown)] == [0, 0, 0, 1, 1]
    assert [bar.name for bar in bars] == ["Base", "wide, top-1", "slim, quick"]
    assert len({bar.color for bar in bars}) == 3 and bars[1].hatch != bars[2].hatch
    assert colors.same_color(shown[min(shown)].get_facecolor(), "0.55")
    assert [text.get_text() for text in axis.texts] == ["2.00", "1.20", "1.00", "0.80", "0.70"]
    label_boxes(axis)
    assert axis.containers[1].lines[2][0].get_segments()[0][:, 1] == pytest.approx([1.9, 2.2])


def test_variants_of_one_name_have_one_rank():
    expected = {("a", "x"): (0, 0), ("a", "y"): (0, 1), ("b", "y"): (1, 1), ("b", "z"): (1, 2)}
    assert ranks({"a": {"x": 1, "y": 2}, "b": {"y": 3, "z": 4}}) == expected


def make_decoding(tmp_path, experiment, tag, heads, calls=4):
    counts = {"decoder_seconds": 0.1 * calls, "total_seconds": 0.2 * calls, "audio_seconds": 1.0}
    counts |= {"drafted": [4] * heads, "accepted": [2] * heads, "words": 3}
    utterances = {f"u{n}": DecodingStatistics(calls, calls, 10 + n, **counts) for n in range(9)}
    return DecodedSet(tmp_path / f"asr_{experiment}", f"{tag}_asr_model_x", "test", utterances, {})


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


def test_acceptance_tokens_per_call_and_speedup_of_the_decoder(figures, tmp_path):
    path, plain = tmp_path / "x.png", make_decoding(tmp_path, "base", "plain", 0, 8)
    drafted = make_decoding(tmp_path, "block", "exact", 2)
    experiment_figures.plot_acceptance([plain, drafted], path)
    assert [bar.get_height() for bar in figures[0].axes[0].patches] == [50.0, 50.0]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["block exact"]
    experiment_figures.plot_speedup([plain, drafted], plain, path)
    points = figures[1].axes[0].collections[0].get_offsets()
    np.testing.assert_allclose(points, [[10 + index, 2.0] for index in range(9)])
    experiment_figures.plot_tokens_per_call([drafted], path)
    x, y = figures[2].axes[0].patches[0].get_xy().T
    area = 0.5 * abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1)))
    assert area / np.diff(np.unique(x)).min() == pytest.approx(9), "all utterances"
    # Nothing to draw draws nothing.
    assert experiment_figures.plot_acceptance([plain], path) is None
    assert experiment_figures.plot_speedup([plain], plain, path) is None
    assert experiment_figures.plot_tokens_per_call([plain], path) is None
    epochs = {1: {"train": {"loss": 1.0}, "valid": {"loss": 1.0, "acc_headless": 1.0}}}
    assert experiment_figures.plot_heads(epochs, "x", path) is None
    assert len(figures) == 3


def test_decodings_of_one_short_name_are_told_apart(tmp_path):
    for parent in ("exp_a", "exp_b"):
        for model in ("model", "valid.loss.best"):
            decoding = make_decoding(tmp_path / parent, "block", "exact", 2)
            decoding = replace(decoding, tag=f"exact_asr_model_{model}")
            decoding.folder.mkdir(parents=True)
            write_statistics(decoding.folder / "statistics.json", decoding.utterances)
            (decoding.folder / "text").touch()
    paths = [tmp_path / parent / "asr_block" for parent in ("exp_a", "exp_b")]
    names = [decoding.name for decoding in read_experiments(paths)]
    assert len({*names}) == 4 and "exp_a/asr_block exact_asr_model_valid.loss.best" in names
    assert [one.name for one in read_experiments(paths[:1])][0] in names


def test_running_median_of_few_and_many_points():
    x, y = experiment_figures.running_median(np.array([5.0]), np.array([2.0]))
    assert (list(x), list(y)) == ([5.0], [2.0])
    values = np.arange(80.0)[::-1]
    x, y = experiment_figures.running_median(values, 2 * values)
    assert len(x) == 8 and list(x) == sorted(x)
    np.testing.assert_allclose(y, 2 * x)


def test_speedup_over_a_decoding_without_search_times(figures, tmp_path):
    theirs = make_decoding(tmp_path, "base", "espnet", 0)
    drafted = make_decoding(tmp_path, "block", "exact", 2)
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
    stage.main(["plot_training", "--exp_dir", str(tmp_path)])
    path = tmp_path / "images" / "training.png"
    assert capsys.readouterr().out == f"{path}\n"
    pixels = image.imread(path)
    assert min(pixels.shape[:2]) > 300 and pixels[..., :3].std() > 0.05
