"""Which settings are tried: shares of heads and beam, nothing twice, nothing that cannot be."""

import pytest

from espnet_medusa.tuning.setting import (
    NO_DRAFTS,
    DraftSetting,
    between,
    depths,
    grid,
    widths,
    with_budgets,
)


@pytest.mark.parametrize(
    ("num_heads", "max_steps", "expected"),
    [
        (8, 8, [2, 4, 8]),
        (8, None, [2, 4, 8, 12, 16]),
        (1, 1, [1]),
        (3, 3, [1, 2, 3]),
        (1, None, [1, 2]),
    ],
)
def test_depths_end_where_the_surrogate_does(num_heads, max_steps, expected):
    assert depths(num_heads, max_steps) == expected


def test_widths_follow_the_beam_and_the_rule():
    assert widths(5) == [3, 5, 10]
    assert widths(1) == [1, 2]
    assert widths(None) == [1, 2, 4]
    assert widths(None, chain_only=True) == [1]


@pytest.mark.parametrize(
    ("best", "max_steps", "expected"),
    [(4, 8, [3, 6]), (2, 8, [1, 3]), (8, 8, [6]), (8, None, [6, 12])],
)
def test_depths_between(best, max_steps, expected):
    assert between([2, 4, 8], best, max_steps) == expected


def test_budgets_bind_and_leave_room_for_drafts():
    settings = grid([4], [1, 2])
    assert settings == [DraftSetting(4, 1), DraftSetting(4, 2)]
    found = with_budgets(settings, most_nodes=[5, 50], least=5)
    assert found == [DraftSetting(4, 2, 20), DraftSetting(4, 2, 35)]
    assert with_budgets(settings, most_nodes=[5, 5], least=10) == []


def test_options_are_keys_of_a_decode_config():
    assert NO_DRAFTS.options() == {"draft_depth": 0}
    expected = {"draft_depth": 3, "draft_width": 2, "draft_budget": None}
    assert DraftSetting(3, 2).options() == expected
