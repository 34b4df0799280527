"""The fastest drafter and setting are found, whatever things cost; other tokens are an error."""

from dataclasses import replace

import pytest
from charged import Offer, Prices, make_task

from espnet_medusa.errors import InputError
from espnet_medusa.search.options import CTC, FIXED, LOOKAHEADS, MODEL
from espnet_medusa.tuning.findings import AS_GOOD, Tuning
from espnet_medusa.tuning.setting import NO_DRAFTS, DraftSetting
from espnet_medusa.tuning.trial import Trial, differing, redraft, run_trials
from espnet_medusa.tuning.tuner import Tuner


def true_seconds(prices: Prices, trial: Trial) -> float:
    """What the price list asks for a trial."""
    offer = prices.offers.get(trial.drafter)
    seconds = 0.0 if offer is None else 2 * offer.begin
    return seconds + sum(
        prices.call
        + prices.node * it.rows * it.row_nodes
        + (offer.row * it.draft_rows if offer else 0.0)
        for it in trial.iterations
    )


@pytest.mark.parametrize("beam_size", [None, 3])
@pytest.mark.parametrize(
    ("call", "node", "row", "drafts"),
    [(1.0, 0.001, 0.001, True), (1.0, 0.05, 0.02, True), (1.0, 0.2, 5.0, False)],
)
def test_the_cheapest_setting_is_chosen(call, node, row, drafts, beam_size):
    prices = Prices(call, node, {"heads": Offer(row)})
    found = Tuner(make_task(prices, beam_size)).tune()
    assert (found.chosen != NO_DRAFTS) == drafts
    seconds = {setting: true_seconds(prices, trial) for setting, trial in found.trials.items()}
    for setting, trial in found.trials.items():
        assert trial.seconds == pytest.approx(seconds[setting])
        assert found.seconds[setting] == pytest.approx(seconds[setting], rel=0.05)
    fixed = [seconds[s] for s in seconds if s.depth > 0 and s.lookahead == FIXED]
    assert seconds[found.best_fixed("heads")] <= (1 + 2 * AS_GOOD) * min(fixed)
    for setting, measured in found.checked.items():
        if setting.lookahead == FIXED:
            assert measured == pytest.approx(seconds[setting])
    assert {setting.lookahead for setting in found.checked} == {*LOOKAHEADS}
    assert not any(found.different.values())


@pytest.mark.parametrize(
    ("beam_size", "offers", "winner"),
    [
        (3, {"heads": Offer(0.01), "ctc": Offer(0.2, kind=CTC)}, "heads"),
        (3, {"heads": Offer(0.2), "small": Offer(0.01, encoder=0.1, kind=MODEL)}, "small"),
        (None, {"heads": Offer(0.2), "ctc": Offer(0.01, kind=CTC)}, "ctc"),
        # What is cheap but wrong, or asks for its price beforehand, does not win.
        (None, {"heads": Offer(0.05), "ctc": Offer(0.0, error=9.0, kind=CTC)}, "heads"),
        (None, {"heads": Offer(0.05), "ctc": Offer(0.0, begin=9.0, kind=CTC)}, "heads"),
        (None, {"heads": Offer(0.05), "small": Offer(0.0, encoder=9.0, kind=MODEL)}, "heads"),
        (None, {"heads": Offer(9.0), "small": Offer(0.0, encoder=99.0, kind=MODEL)}, "no drafts"),
    ],
)
def test_the_cheapest_drafter_is_chosen(beam_size, offers, winner):
    found = Tuner(make_task(Prices(offers=offers), beam_size)).tune()
    assert found.chosen.drafter == winner
    assert {setting.drafter for setting in found.checked} == {"no drafts", *offers}
    for name, offer in offers.items():
        best = found.best_checked(name)
        assert found.whole(best) == pytest.approx(1.0 + 2 * offer.encoder + found.checked[best])
        parts = found.parts(best)
        assert sum(parts.values()) == pytest.approx(found.whole(best))
        assert parts["draft model's encoder"] == 2 * offer.encoder
        assert parts["drafting"] >= 2 * offer.begin * 0.99


def test_settings_are_narrowed_step_by_step():
    far, near = Offer(9.0, kind=CTC), Offer()
    found = Tuner(make_task(Prices(offers={"far": far, "near": near}))).tune()
    tried = {
        name: [s for s in found.trials if s.drafter == name and s.lookahead == FIXED]
        for name in ("far", "near")
    }
    assert {s.width for s in tried["far"]} == {1} and {s.depth for s in tried["far"]} > {10, 20, 40}
    assert len(tried["far"]) <= 5
    # 4 heads and a proposer without end: 1, 2, 4, 6, 8, then neighbours of the best.
    assert {s.depth for s in tried["near"]} >= {1, 2, 4, 6, 8}
    assert {s.width for s in tried["near"]} == {1, 2, 4}
    assert 8 <= len(tried["near"]) <= 14


def test_budgets_hold():
    task = make_task(Prices())
    wide, narrow = DraftSetting("heads", 6, 4), DraftSetting("heads", 6, 4, 7)
    trials = run_trials(task, [wide, narrow], "test")
    assert 7 < trials[wide].most_nodes <= 1 + 4 * 6
    assert trials[narrow].most_nodes == 7


def test_an_unverified_rule_is_tuned_in_chains_of_fixed_depth():
    found = Tuner(make_task(Prices(), acceptance="threshold")).tune()
    assert {(s.width, s.lookahead) for s in found.trials} == {(1, FIXED)}


def test_other_tokens_are_an_error_with_names():
    task = make_task(Prices(), error=9.0)
    with pytest.raises(InputError, match=r"^[ab]: with heads, depth \d.*without drafts \[.*defect"):
        Tuner(task).tune()


def test_coarse_arithmetic_is_told_not_refused():
    found = Tuner(make_task(Prices(), error=9.0, rounding=True)).tune()
    assert found.different[NO_DRAFTS] == []
    assert any(keys for keys in found.different.values())


@pytest.mark.parametrize(
    ("acceptance", "most_different", "same", "chosen"),
    [
        ("exact", 0, {"slower"}, "slower"),
        ("exact", 0, {"faster", "slower"}, "faster"),
        ("exact", 0, set(), "no drafts"),
        ("exact", 1, set(), "faster"),
        ("typical", 0, {"slower"}, "faster"),
    ],
)
def test_what_changes_the_text_is_not_chosen(acceptance, most_different, same, chosen):
    task = replace(make_task(Prices(), rounding=True), most_different=most_different)
    found = Tuning(replace(task, options=replace(task.options, acceptance=acceptance)))
    seconds = {"faster": 1.0, "slower": 2.0}
    settings = {DraftSetting(name, 4): value for name, value in seconds.items()}
    found.seconds = found.checked = {NO_DRAFTS: 3.0, **settings}
    found.different = {s: [] if s.drafter in same else ["a"] for s in settings} | {NO_DRAFTS: []}
    assert found.chosen.drafter == chosen


def test_what_is_hardly_faster_is_not_chosen():
    found = Tuning(make_task(Prices()))
    setting = DraftSetting("heads", 4)
    found.different = {NO_DRAFTS: [], setting: []}
    for ratio, chosen in ((1 - AS_GOOD / 2, NO_DRAFTS), (1 - 2 * AS_GOOD, setting)):
        found.seconds = found.checked = {NO_DRAFTS: 3.0, setting: 3.0 * ratio}
        assert found.chosen == chosen


def test_without_drafters_there_is_nothing_to_choose():
    found = Tuner(make_task(Prices(offers={})), ["drafter: heads; none"]).tune()
    assert found.chosen == NO_DRAFTS and [*found.trials] == [NO_DRAFTS]
    assert not found.checked and found.left_out == ["drafter: heads; none"]


def test_ties_may_change_places_but_not_more():
    def trial(outputs, scores):
        return Trial("heads", outputs={"a": outputs}, scores={"a": scores})

    plain = trial(((1, 2), (1, 3)), [-1.0, -1.00001])
    swapped = trial(((1, 3), (1, 2)), [-1.0, -1.00001])
    assert differing(plain, plain) == []
    assert differing(swapped, plain, tie=1e-4) == []
    assert differing(swapped, plain) == ["a"]
    assert differing(trial(((1, 3), (1, 2)), [-1.0, -2.0]), plain, tie=1e-4) == ["a"]
    assert differing(trial(((1, 2),), [-1.0]), plain, tie=1e-4) == ["a"]


@pytest.mark.parametrize("beam_size", [None, 3])
@pytest.mark.parametrize("kind", ["heads", CTC])
def test_timing_changes_nothing_and_counts_what_happens(kind, beam_size):
    prices = Prices(offers={"one": Offer(0.01, begin=0.3, kind=kind)})
    task = make_task(prices, beam_size)
    setting = DraftSetting("one", 4, 3)
    trial = run_trials(task, [setting], "test")[setting]
    search = redraft(task, setting)
    states = [batch.decode(search, task.limits, "one")[0] for batch in task.batches]
    assert trial.statistics.decoder_calls == len(trial.iterations)
    assert trial.statistics.decoder_calls == sum(w.statistics.decoder_calls for w in states)
    assert trial.statistics.nodes == sum(w.statistics.nodes for w in states)
    assert trial.statistics.nodes == sum(it.rows * it.row_nodes for it in trial.iterations)
    assert sum(it.steps for it in trial.iterations) == sum(state.steps for state in states)
    # What needs no head input drafts before the first call, too.
    assert max(it.draft_steps for it in trial.iterations) == (4 if kind == "heads" else 8)
    assert max(it.drafts for it in trial.iterations) == (1 if kind == "heads" else 2)
    rows = sum(it.draft_rows for it in trial.iterations)
    drafting = sum(it.draft_seconds for it in trial.iterations)
    assert drafting == pytest.approx(0.01 * rows)
    names = ("begin", "call", "state", "draft", "other")
    claimed = sum(getattr(it, f"{name}_seconds") for it in trial.iterations for name in names)
    assert claimed + trial.setup_seconds == pytest.approx(trial.seconds)
    assert trial.begin_seconds == pytest.approx(0.6)
    assert task.search.drafter.shape.depth == 0, "the search given is left as it was"
