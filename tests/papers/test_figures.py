"""Figures: what they show of hand-made rows, and where their labels stand."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib import colors, pyplot

from espnet_medusa.papers.calls_per_word import eta_bars, plot_calls_per_word
from espnet_medusa.papers.drawing import ranks
from espnet_medusa.papers.figure_plan import CallsPerWord, WerAgainstEta
from espnet_medusa.papers.label_places import label_places
from espnet_medusa.papers.measured import Row
from espnet_medusa.papers.plan import System, TablePlan
from espnet_medusa.papers.speedup_by_length import LengthBin, bin_speedups, plot_speedup_by_length
from espnet_medusa.papers.spread import Estimate
from espnet_medusa.papers.wer_against_eta import (
    Panel,
    Point,
    plot_wer_against_eta,
    wer_eta_panels,
)


@pytest.fixture
def drawn(monkeypatch):
    """Figures that were written, kept open for the test to look at."""
    figures = []
    close = pyplot.close
    monkeypatch.setattr("espnet_medusa.papers.drawing.pyplot.close", figures.append)
    yield figures
    for figure in figures:
        close(figure)


def table(**changes):
    """Two groups with two systems each; K is 2 and 3 in one of them."""
    keys = ("base", "wide2", "wide3", "slim2", "slim_quick")
    points = {
        "wide": {"top-1": {"2": "wide2", "3": "wide3"}},
        "slim": {"top-1": {"2": "slim2"}, "quick": {"2": "slim_quick"}},
    }
    plan = TablePlan(
        "T",
        {"test": "English", "test_de": "German"},
        {key: System(key.capitalize(), f"asr_{key}", "exact") for key in keys},
        "base",
        figure=WerAgainstEta("F", points, "K"),
    )
    return replace(plan, **changes)


def row(system, test_set, eta, wer):
    return Row(system, test_set, eta=Estimate(eta, eta - 0.1, eta + 0.2), wer=Estimate(wer))


ROWS = [
    row("base", "English", 2.0, 5.0),
    row("wide2", "English", 1.2, 5.0),
    row("wide3", "English", 0.9, 5.5),
    row("slim_quick", "English", 0.8, 6.5),
    Row("slim2", "English", "not run"),
    Row("base", "German", "not run"),
    row("slim_quick", "German", 0.7, 8.0),
    Row("wide2", "German", eta=Estimate(1.0)),
]


def test_bins_of_length():
    tokens = np.array([0, 4, 9, 10, 19, 19, 25])
    speedups = np.array([1.0, 2.0, 3.0, 5.0, 6.0, 9.0, 4.0])
    assert bin_speedups(tokens, speedups, 10) == [
        LengthBin(0, 9, 3, 1.5, 2.0, 2.5),
        LengthBin(10, 19, 3, 5.5, 6.0, 7.5),
    ]
    assert bin_speedups(tokens, speedups, 5) == []


def test_plot_shows_labels_bins_and_values(tmp_path, drawn):
    bins = [LengthBin(0, 9, 3, 1.5, 2.0, 2.5), LengthBin(10, 19, 4, 2.0, 3.0, 3.5)]
    panels = {"one": {"Linear": bins}, "two": {"Linear": bins[1:], "Block": bins}}
    path = plot_speedup_by_length(panels, tmp_path / "images" / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    left, right = drawn[0].axes
    assert (left.get_title(), right.get_title()) == ("one", "two")
    assert left.get_ylabel() == "speedup over plain decoding"
    assert left.get_xlabel() == right.get_xlabel() == "tokens of the utterance"
    assert [label.get_text() for label in left.get_xticklabels()] == ["0-9\nn=3", "10-19\nn=4"]
    line, lower, upper = left.containers[0].lines[0], *left.containers[0].lines[1]
    assert list(line.get_ydata()) == [2.0, 3.0]
    assert list(lower.get_ydata()) == [1.5, 2.0] and list(upper.get_ydata()) == [2.5, 3.5]
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["Linear", "Block"]
    assert right.containers[0].lines[0].get_xdata()[0] == pytest.approx(1 - 0.06)


def test_no_panels_no_plot(tmp_path):
    path = tmp_path / "plot.png"
    assert plot_speedup_by_length({}, path) is None
    assert plot_wer_against_eta(table().figure, {}, path) is None
    assert plot_calls_per_word(["English"], [], path) is None
    assert not (tmp_path / "plot.png").exists()


def test_wer_against_eta_of_what_was_run_and_scored():
    assert wer_eta_panels(table(), ROWS) == {
        "English": Panel(
            {
                ("wide", "top-1"): [Point("2", 1.2, 5.0), Point("3", 0.9, 5.5)],
                ("slim", "quick"): [Point("2", 0.8, 6.5)],
            },
            Point("Base", 2.0, 5.0),
        ),
        "German": Panel({("slim", "quick"): [Point("2", 0.7, 8.0)]}, None),
    }
    assert wer_eta_panels(table(), ROWS[:1]) == {}  # plain decoding alone is no comparison


def test_plot_of_wer_against_eta(tmp_path, drawn):
    plan = table()
    path = tmp_path / "images" / "plot.png"
    plot_wer_against_eta(plan.figure, wer_eta_panels(plan, ROWS), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    english, german = drawn[0].axes
    assert (english.get_title(), german.get_title()) == ("English", "German")
    assert english.get_xlabel() == german.get_xlabel() == "decoder calls per word (eta)"
    assert english.get_ylabel() == "WER [%]"
    wide, quick, level, star = english.get_lines()
    assert wide.get_xydata().tolist() == [[1.2, 5.0], [0.9, 5.5]]
    assert star.get_xydata().tolist() == [[2.0, 5.0]] and star.get_marker() == "*"
    assert list(level.get_ydata()) == [5.0, 5.0]
    assert [text.get_text() for text in english.texts] == ["2", "3", "2"]
    (legend,) = drawn[0].legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["wide, top-1", "slim, quick", "Base"]
    # A series looks the same in each panel, and its labels have its color.
    (alone,) = german.get_lines()
    assert (alone.get_color(), alone.get_marker()) == (quick.get_color(), quick.get_marker())
    assert wide.get_color() != quick.get_color() and wide.get_marker() != quick.get_marker()
    assert english.texts[2].get_color() == quick.get_color()


def test_labels_of_crowded_points_do_not_cover_each_other_or_points(tmp_path, drawn):
    places = np.random.default_rng(2).normal((1.0, 6.0), (0.3, 1.5), size=(30, 2))
    series = {
        ("wide", "top-1"): [Point("2", *place) for place in places[:15]],
        ("slim", "quick"): [Point("3", *place) for place in places[15:]],
    }
    panels = {"English": Panel(series, Point("Base", 1.0, 6.0))}
    plot_wer_against_eta(table().figure, panels, tmp_path / "plot.png")
    (axis,) = drawn[0].axes
    boxes = [text.get_window_extent() for text in axis.texts]
    overlaps = [(a, b) for a, b in zip(*np.triu_indices(30, 1), strict=True)
                if boxes[a].overlaps(boxes[b])]  # fmt: skip
    assert not overlaps
    assert not any(box.count_contains(axis.transData.transform(places)) for box in boxes)


def test_label_keeps_clear():
    # Free all around: above. Something there: the next place that is free.
    point = np.array([[0.0, 0.0]])
    assert label_places(point, point, 2.0) == pytest.approx(np.array([[0.0, 2.0]]))
    obstacles = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    (found,) = label_places(point, obstacles, 2.0)
    assert np.linalg.norm(obstacles - found, axis=1).min() == pytest.approx(2.0)
    # Nowhere free: the least bad, in the gap of a ring.
    angles = np.radians(np.arange(30, 331, 10))
    ring = 2.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert label_places(point, ring, 2.0) == pytest.approx(np.array([[2.0, 0.0]]))
    # Two points in one place: their labels apart.
    first, second = label_places(np.repeat(point, 2, axis=0), point, 2.0)
    assert np.linalg.norm(first - second) >= 2.0


def test_bars_of_eta():
    groups = {"wide": {"top-1": "wide2"}, "slim": {"top-1": "slim2", "quick": "slim_quick"}}
    plain, wide, quick = eta_bars(table(figure=CallsPerWord("F", groups)), ROWS)
    assert [entry.name for entry in (plain, wide, quick)] == ["Base", "wide, top-1", "slim, quick"]
    assert plain.values == {"English": Estimate(2.0, 1.9, 2.2)}
    assert wide.values["German"] == Estimate(1.0) and wide.values["English"].high == 1.4
    assert len({plain.color, wide.color, quick.color}) == 3 and wide.hatch != quick.hatch


def test_plot_of_calls_per_word(tmp_path, drawn):
    groups = {"wide": {"top-1": "wide2"}, "slim": {"quick": "slim_quick"}}
    bars = eta_bars(table(figure=CallsPerWord("F", groups)), ROWS)
    path = plot_calls_per_word(["French", "English", "German"], bars, tmp_path / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    (axis,) = drawn[0].axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["English", "German"]
    assert axis.get_ylabel() == "decoder calls per word (eta)" and axis.get_ylim()[0] == 0
    shown = {bar.get_x() + bar.get_width() / 2: bar for bar in axis.patches}
    heights = [round(shown[place].get_height(), 9) for place in sorted(shown)]
    assert heights == [2.0, 1.2, 0.8, 1.0, 0.7]
    # Systems keep their place: German lacks the first one.
    assert [round(place) for place in sorted(shown)] == [0, 0, 0, 1, 1]
    grey = shown[min(shown)].get_facecolor()
    assert colors.to_hex(grey) == colors.to_hex("0.55")
    assert [text.get_text() for text in axis.texts] == ["2.00", "1.20", "1.00", "0.80", "0.70"]
    boxes = [text.get_window_extent() for text in axis.texts]
    assert sum(first.overlaps(second) for first in boxes for second in boxes) == len(boxes)
    reach = axis.containers[1].lines[2][0].get_segments()[0]
    assert reach[:, 1] == pytest.approx([1.9, 2.2])


def test_variants_of_one_name_have_one_rank():
    groups = {"a": {"x": 1, "y": 2}, "b": {"y": 3, "z": 4}}
    expected = {("a", "x"): (0, 0), ("a", "y"): (0, 1), ("b", "y"): (1, 1), ("b", "z"): (1, 2)}
    assert ranks(groups) == expected
