"""The fastest setting is found, whatever things cost; other tokens are an error."""

import pytest
from charged import Prices, make_task

from espnet_medusa.errors import InputError
from espnet_medusa.tuning.setting import NO_DRAFTS, DraftSetting
from espnet_medusa.tuning.trial import Trial, differing, redraft, run_trials
from espnet_medusa.tuning.tuner import AS_GOOD, Tuner


def true_seconds(prices: Prices, trial: Trial) -> float:
    """What the price list asks for a trial."""
    return sum(
        prices.call + prices.node * it.rows * it.row_nodes + prices.draft_row * it.draft_rows
        for it in trial.iterations
    )


@pytest.mark.parametrize("beam_size", [None, 3])
@pytest.mark.parametrize(
    ("prices", "drafts"),
    [
        (Prices(call=1.0, node=0.001, draft_row=0.001), True),
        (Prices(call=1.0, node=0.05, draft_row=0.02), True),
        (Prices(call=1.0, node=0.2, draft_row=5.0), False),
    ],
)
def test_the_cheapest_setting_is_chosen(prices, drafts, beam_size):
    task = make_task(prices, beam_size)
    found = Tuner(task).tune()
    assert (found.chosen != NO_DRAFTS) == drafts
    seconds = {setting: true_seconds(prices, trial) for setting, trial in found.trials.items()}
    for setting, trial in found.trials.items():
        assert trial.seconds == pytest.approx(seconds[setting])
        assert found.seconds[setting] == pytest.approx(seconds[setting], rel=0.05)
    drafted = [seconds[setting] for setting in seconds if setting != NO_DRAFTS]
    assert seconds[found.drafted] <= (1 + 2 * AS_GOOD) * min(drafted)
    ratio = seconds[NO_DRAFTS] / seconds[found.drafted]
    assert found.check.ratio == pytest.approx(ratio)
    assert (found.check.ratio > 1) == drafts
    assert not any(found.different.values())


def test_many_settings_are_tried_and_none_of_them_as_a_product():
    found = Tuner(make_task(Prices())).tune()
    tried = {setting for setting in found.trials if setting.budget is None}
    # 4 heads and a surrogate without end: 1, 2, 4, 6, 8, by 3 widths, no drafts, and refinements.
    assert 16 <= len(tried) <= 18
    assert {setting.depth for setting in tried} >= {0, 1, 2, 4, 6, 8}
    assert any(setting.budget for setting in found.trials)
    assert len(found.trials) <= 25


def test_budgets_hold():
    task = make_task(Prices())
    wide, narrow = DraftSetting(6, 4), DraftSetting(6, 4, 7)
    trials = run_trials(task, [wide, narrow], "test")
    assert 7 < trials[wide].most_nodes <= 1 + 4 * 6
    assert trials[narrow].most_nodes == 7


def test_an_unverified_rule_is_tuned_in_chains():
    task = make_task(Prices(), acceptance="threshold")
    assert Tuner(task).widths == [1]


def test_other_tokens_are_an_error_with_names():
    task = make_task(Prices(), error=9.0)
    with pytest.raises(InputError, match=r"^[ab]: with depth \d.*without drafts \[.*defect"):
        Tuner(task).tune()


def test_coarse_arithmetic_is_told_not_refused():
    found = Tuner(make_task(Prices(), error=9.0, rounding=True)).tune()
    assert found.different[NO_DRAFTS] == []
    assert any(keys for keys in found.different.values())


def test_without_heads_there_is_nothing_to_choose():
    found = Tuner(make_task(Prices(), num_heads=0)).tune()
    assert found.chosen == NO_DRAFTS and [*found.trials] == [NO_DRAFTS]
    assert found.check is None and found.drafted is None


def test_ties_may_change_places_but_not_more():
    plain = Trial(outputs={"a": ((1, 2), (1, 3))}, scores={"a": [-1.0, -1.00001]})
    swapped = Trial(outputs={"a": ((1, 3), (1, 2))}, scores={"a": [-1.0, -1.00001]})
    apart = Trial(outputs={"a": ((1, 3), (1, 2))}, scores={"a": [-1.0, -2.0]})
    fewer = Trial(outputs={"a": ((1, 2),)}, scores={"a": [-1.0]})
    assert differing(plain, plain) == []
    assert differing(swapped, plain, tie=1e-4) == []
    assert differing(swapped, plain) == ["a"]
    assert differing(apart, plain, tie=1e-4) == ["a"]
    assert differing(fewer, plain, tie=1e-4) == ["a"]


@pytest.mark.parametrize("beam_size", [None, 3])
def test_timing_changes_nothing_and_counts_what_happens(beam_size):
    prices = Prices()
    task = make_task(prices, beam_size)
    setting = DraftSetting(4, 3)
    trial = run_trials(task, [setting], "test")[setting]
    search = redraft(task.search, task.options, setting)
    walks = [batch.decode(search, task.limits)[0] for batch in task.batches]
    assert trial.statistics.decoder_calls == len(trial.iterations)
    assert trial.statistics.decoder_calls == sum(w.statistics.decoder_calls for w in walks)
    assert trial.statistics.nodes == sum(w.statistics.nodes for w in walks)
    assert trial.statistics.nodes == sum(it.rows * it.row_nodes for it in trial.iterations)
    assert sum(it.steps for it in trial.iterations) == sum(walk.steps for walk in walks)
    # The prompt's own call and the last one draft nothing.
    assert max(it.draft_steps for it in trial.iterations) == 4
    names = ("call_seconds", "walk_seconds", "draft_seconds", "other_seconds")
    claimed = sum(getattr(it, name) for it in trial.iterations for name in names)
    assert claimed + trial.setup_seconds == pytest.approx(trial.seconds)
    assert task.search.drafter.shape.depth == 0, "the search given is left as it was"
