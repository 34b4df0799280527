"""Candidates follow the drafter, the search and the acceptance rule."""

from dataclasses import replace

import pytest
from charged import Offer, Prices, make_task

from espnet_medusa.search.options import CTC, CTC_HEADS, HEADS, LOOKAHEADS, MODEL
from espnet_medusa.tuning.available import NO_DRAFTS, Drafter, DraftModelFiles, DraftSetting
from espnet_medusa.tuning.candidates import candidates, depths, widths, with_budgets


@pytest.mark.parametrize(
    ("kind", "greedy", "num_heads", "max_steps", "expected"),
    [
        (HEADS, True, 8, 8, [2, 3, 4, 6, 8]),
        (HEADS, True, 8, None, [2, 3, 4, 6, 8, 12, 16]),
        (HEADS, False, 1, 1, [1]),
        (HEADS, True, 3, 3, [1, 2, 3]),
        (HEADS, True, 1, None, [1, 2]),
        (CTC, True, 0, None, [5, 10, 15, 20, 30, 40, 60]),
        (CTC_HEADS, True, 8, None, [5, 10, 15, 20, 30, 40, 60]),
        (CTC, False, 0, None, [1, 2, 4, 6, 10, 15, 20]),
        (MODEL, True, 8, None, [1, 2, 3, 4, 6, 8, 12]),
    ],
)
def test_depths(kind, greedy, num_heads, max_steps, expected):
    assert depths(kind, greedy, num_heads, max_steps) == expected


@pytest.mark.parametrize(
    ("beam_size", "chain_only", "expected"),
    [(5, False, [3, 5, 10]), (1, False, [1, 2]), (None, False, [1, 2, 4]), (None, True, [1])],
)
def test_widths(beam_size, chain_only, expected):
    assert widths(beam_size, chain_only) == expected


@pytest.mark.parametrize(
    ("setting", "least", "expected"),
    [
        (DraftSetting("heads", 10, 1), 1, []),
        (DraftSetting("heads", 10, 5), 5, [25]),
        (DraftSetting("heads", 2, 5), 5, []),
        (DraftSetting("ctc", 20, 5, 60), 5, [30, 120]),
        (DraftSetting("ctc", 10, 5, 60), 5, [25]),
    ],
    ids=[
        "chain",
        "half of the largest draft",
        "no room",
        "default exceeded",
        "default not reached",
    ],
)
def test_budgets_bind_and_leave_room_for_drafts(setting, least, expected):
    assert with_budgets(setting, least) == [replace(setting, budget=b) for b in expected]


@pytest.mark.parametrize("beam_size", [None, 3])
def test_each_lookahead_has_a_group(beam_size):
    task = make_task(Prices(offers={"draft": Offer(kind=CTC)}), beam_size)
    drafter = task.drafters["draft"]
    drafter.proposers[0.3] = drafter.proposers[None]
    groups = candidates(task, drafter)
    tried = depths(CTC, beam_size is None, 4, None)
    for lookahead, group in zip(LOOKAHEADS, groups, strict=True):
        assert len(group) == len({*group}) and {s.lookahead for s in group} == {lookahead}
        assert {s.width for s in group} == {*widths(beam_size)}
        assert {s.share for s in group} == {None, 0.3}
    assert {s.depth for s in groups[0]} == {*tried}
    assert {s.depth for group in groups[1:] for s in group} == {tried[-1]}


def test_options_are_keys_of_a_decode_config():
    assert NO_DRAFTS.options() == {"draft_depth": 0}
    shape = {"lookahead": "cost", "draft_depth": 3, "draft_width": 2, "draft_budget": None}
    setting = DraftSetting("heads", 3, 2, lookahead="cost")
    assert Drafter("heads", HEADS, {}).config(setting) == {"drafter": "heads", **shape}
    mixed = replace(setting, drafter="ctc+heads", share=0.6)
    keys = {"drafter": "ctc+heads", "ctc_draft_share": 0.6, **shape}
    assert Drafter("ctc+heads", CTC_HEADS, {}).config(mixed) == keys
    files = DraftModelFiles("exp/small", "exp/small/best.pth")
    names = {"drafter": "model", "draft_model": "exp/small", "draft_model_file": files.weights}
    assert Drafter("small", MODEL, {}, files.keys()).config(setting) == names | shape
    assert DraftModelFiles("exp/small").keys() == {"draft_model": "exp/small"}
