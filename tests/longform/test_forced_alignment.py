"""The likeliest way of a text through frames, against all ways there are."""

import itertools

import numpy as np
import pytest

from espnet_medusa.longform.forced_alignment import align_units

BLANK = 2


def labelled(path) -> list[tuple[int, list[int]]]:
    """Units that a path of columns writes, with their frames: repeats merged, blanks left out."""
    runs = itertools.groupby(enumerate(path), key=lambda pair: pair[1])
    found = [(unit, [frame for frame, _ in run]) for unit, run in runs]
    return [(unit, frames) for unit, frames in found if unit != BLANK]


def likeliest(log_probs, units) -> list[list[int]] | None:
    """Frames of each unit on the best of all paths; None: no path writes the units."""
    best, places = -np.inf, None
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        found = labelled(path)
        score = log_probs[range(len(path)), path].sum()
        if [unit for unit, _ in found] == [*units] and (places is None or score > best):
            best, places = score, [frames for _, frames in found]
    return places


def posteriors(rng, frames: int, columns: int) -> np.ndarray:
    values = rng.exponential(size=(frames, columns))
    return values / values.sum(axis=1, keepdims=True)


def test_the_way_is_the_likeliest_of_all():
    with_way = repeated = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        frames = 1 + seed % 5
        heard = posteriors(rng, frames, 4)
        units = rng.choice([0, 3], rng.integers(0, frames + 1))
        expected, spans = likeliest(np.log(heard), units), align_units(np.log(heard), units, BLANK)
        if expected is None:  # units and the blanks between repeats are more than frames
            assert spans.ends[-1] == frames and len(spans.starts) == len(units)
            continue
        with_way += 1
        repeated += bool((units[1:] == units[:-1]).any())
        assert [*spans.starts] == [own[0] for own in expected]
        assert [*spans.ends] == [own[-1] + 1 for own in expected]
        means = [heard[own, unit].mean() for own, unit in zip(expected, units, strict=True)]
        assert spans.probabilities == pytest.approx(means)
    assert 50 < with_way < 80 and repeated > 5


def test_a_spike_is_found_wherever_it_is():
    heard = np.full((500, 6), 1e-4)
    heard[:, BLANK] = 1.0
    frames = [3, 90, 91, 93, 400, 499]
    units = [0, 5, 1, 1, 4, 0]
    heard[frames, units] = 5.0
    heard /= heard.sum(axis=1, keepdims=True)
    spans = align_units(np.log(heard), units, BLANK)
    assert [*spans.starts] == frames and [*spans.ends] == [frame + 1 for frame in frames]
    assert spans.probabilities == pytest.approx(heard[frames, units])


def test_what_is_ruled_out_takes_the_frames_that_nothing_else_needs():
    heard = np.zeros((6, 4))
    heard[[0, 1, 2, 3, 4, 5], [0, 0, BLANK, BLANK, 1, 1]] = 1.0
    with np.errstate(divide="ignore"):
        spans = align_units(np.log(heard), [0, 3, 1], BLANK)
    assert spans.starts[0] == 0 and spans.ends[2] == 6
    assert spans.ends[0] <= spans.starts[1] < spans.ends[1] <= spans.starts[2]
    assert spans.probabilities[1] == 0


@pytest.mark.parametrize(("frames", "units"), [(1, [0, 1]), (3, [0, 0, 0]), (2, [1] * 9), (1, [3])])
def test_units_share_frames_that_are_too_few(frames, units):
    heard = posteriors(np.random.default_rng(frames), frames, 4)
    spans = align_units(np.log(heard), units, BLANK)
    edges = np.linspace(0, frames, len(units) + 1)
    assert spans.starts == pytest.approx(edges[:-1]) and spans.ends == pytest.approx(edges[1:])
    own = [int(edge + 1e-9) for edge in edges[:-1]]
    assert spans.probabilities == pytest.approx(heard[own, units])


@pytest.mark.parametrize("frames", [1, 5])
def test_of_no_units_there_are_no_places(frames):
    spans = align_units(np.log(np.full((frames, 3), 1 / 3)), [], BLANK)
    assert [len(part) for part in spans] == [0, 0, 0]
