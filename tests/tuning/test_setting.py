"""Which settings are tried: by what drafts and by the search, nothing that cannot be."""

import pytest

from espnet_medusa.search.options import CTC, CTC_HEADS, HEADS, MODEL
from espnet_medusa.tuning.available import Drafter, DraftModelFiles
from espnet_medusa.tuning.setting import (
    NO_DRAFTS,
    DraftSetting,
    between,
    depths,
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
def test_depths_end_where_the_proposer_does(num_heads, max_steps, expected):
    assert depths(HEADS, True, num_heads, max_steps) == expected


def test_steps_of_ctc_are_free_in_a_chain():
    assert depths(CTC, True, 0, None) == depths(CTC_HEADS, True, 8, None) == [10, 20, 40]
    assert max(depths(CTC, False, 0, None)) < 40
    assert depths(MODEL, True, 8, None) == [1, 2, 4, 8]


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
    wide = DraftSetting("heads", 4, 2)
    expected = [DraftSetting("heads", 4, 2, 20), DraftSetting("heads", 4, 2, 35)]
    assert with_budgets(wide, most_nodes=50, least=5) == expected
    assert with_budgets(wide, most_nodes=5, least=10) == []
    assert with_budgets(DraftSetting("heads", 4), most_nodes=5, least=1) == [], "a chain"
    bound = with_budgets(DraftSetting("ctc", 10, 5, 60), most_nodes=60, least=5)
    assert [setting.budget for setting in bound] == [24, 42, 120]
    free = with_budgets(DraftSetting("ctc", 10, 5, 60), most_nodes=40, least=5)
    assert [setting.budget for setting in free] == [16, 28]


def test_options_are_keys_of_a_decode_config():
    assert NO_DRAFTS.options() == {"draft_depth": 0}
    shape = {"lookahead": "cost", "draft_depth": 3, "draft_width": 2, "draft_budget": None}
    setting = DraftSetting("heads", 3, 2, lookahead="cost")
    assert Drafter("heads", HEADS, {}).config(setting) == {"drafter": "heads", **shape}
    mixed = DraftSetting("ctc+heads", 3, 2, lookahead="cost", share=0.6)
    keys = {"drafter": "ctc+heads", "ctc_draft_share": 0.6, **shape}
    assert Drafter("ctc+heads", CTC_HEADS, {}).config(mixed) == keys
    files = DraftModelFiles("exp/small", "exp/small/best.pth")
    names = {"drafter": "model", "draft_model": "exp/small", "draft_model_file": files.weights}
    assert Drafter("small", MODEL, {}, None, files).config(setting) == names | shape
