"""The tuner finds the fastest drafter and setting at any prices; other tokens are an error."""

from dataclasses import replace

import pytest
from charged import Offer, Prices, make_task

from espnet_medusa.errors import InputError
from espnet_medusa.search.options import CTC, FIXED, LOOKAHEADS, MODEL
from espnet_medusa.tuning.available import NO_DRAFTS, DraftSetting
from espnet_medusa.tuning.candidates import candidates
from espnet_medusa.tuning.findings import MARGIN, Tuning
from espnet_medusa.tuning.stopwatch import DRAFTING
from espnet_medusa.tuning.trial import Trial, run_trials
from espnet_medusa.tuning.tuner import round_ends, tune


@pytest.mark.parametrize("beam_size", [None, 3])
@pytest.mark.parametrize(
    ("call", "node", "row", "drafts"),
    [(1.0, 0.001, 0.001, True), (1.0, 0.05, 0.02, True), (1.0, 0.2, 5.0, False)],
)
def test_the_fastest_setting_of_all_candidates_is_chosen(call, node, row, drafts, beam_size):
    prices = Prices(call, node, {"heads": Offer(row)})
    task = make_task(prices, beam_size, utterances=6)
    tuning = tune(task)
    assert (tuning.chosen != NO_DRAFTS) == drafts
    assert {setting.lookahead for setting in tuning.checked} == {*LOOKAHEADS}
    assert not any(tuning.different.values())
    fixed = candidates(task, task.drafters["heads"])[0]
    exhaustive = {setting: Trial(task.redraft(setting)) for setting in fixed}
    run_trials(task, exhaustive, task.batches, "all")
    [best] = [setting for setting in tuning.checked if setting in fixed]
    seconds = {setting: trial.seconds for setting, trial in exhaustive.items()}
    assert tuning.checked[best] == pytest.approx(min(seconds.values()))
    for setting in fixed:  # dropped candidates are estimated through the baseline
        assert tuning.seconds(setting) == pytest.approx(seconds[setting])


@pytest.mark.parametrize(
    ("beam_size", "offers", "winner"),
    [
        (3, {"heads": Offer(0.01), "ctc": Offer(0.2, kind=CTC)}, "heads"),
        (3, {"heads": Offer(0.2), "small": Offer(0.01, encoder=0.1, kind=MODEL)}, "small"),
        (None, {"heads": Offer(0.2), "ctc": Offer(0.01, kind=CTC)}, "ctc"),
        # A drafter that is cheap but wrong, or has a high price per batch, does not win.
        (None, {"heads": Offer(0.05), "ctc": Offer(0.0, error=9.0, kind=CTC)}, "heads"),
        (None, {"heads": Offer(0.05), "ctc": Offer(0.0, begin=9.0, kind=CTC)}, "heads"),
        (None, {"heads": Offer(0.05), "small": Offer(0.0, encoder=9.0, kind=MODEL)}, "heads"),
        (None, {"heads": Offer(9.0), "small": Offer(0.0, encoder=99.0, kind=MODEL)}, "no drafts"),
    ],
)
def test_the_fastest_drafter_is_chosen(beam_size, offers, winner):
    tuning = tune(make_task(Prices(offers=offers), beam_size))
    assert tuning.chosen.drafter == winner
    assert {setting.drafter for setting in tuning.checked} == {"no drafts", *offers}
    for name, offer in offers.items():
        best = tuning.best_checked(name)
        assert tuning.whole(best) == pytest.approx(1.0 + 2 * offer.encoder + tuning.checked[best])
        parts = tuning.parts(best)
        assert sum(parts.values()) == pytest.approx(tuning.whole(best))
        assert parts["draft model's encoder"] == 2 * offer.encoder
        assert parts[DRAFTING] >= 2 * offer.begin * 0.99


@pytest.mark.parametrize(
    ("batches", "largest", "expected"),
    [(30, 16, [4, 8, 15, 30]), (30, 63, [2, 4, 8, 15, 30]), (3, 8, [2, 3]), (1, 1, [1])],
)
def test_rounds_double_their_batches_and_end_with_all(batches, largest, expected):
    assert round_ends(batches, largest) == expected


def test_half_of_a_group_goes_on_and_finalists_decode_all_utterances():
    task = make_task(Prices(), utterances=8)
    tuning = tune(task)
    groups = candidates(task, task.drafters["heads"])
    for group in groups:
        counts = sorted(len(tuning.trials[setting].outputs) for setting in group)
        assert 1 <= counts.count(8) <= max(len(group) // 2, 2) < len(group)
    assert len(tuning.trials[NO_DRAFTS].outputs) == 8
    assert all(len(tuning.trials[setting].outputs) == 8 for setting in tuning.checked)


def test_budgets_hold():
    task = make_task(Prices())
    wide, narrow = DraftSetting("heads", 6, 4), DraftSetting("heads", 6, 4, 7)
    trials = {setting: Trial(task.redraft(setting)) for setting in (wide, narrow)}
    run_trials(task, trials, task.batches, "test")
    nodes = {s: t.statistics.nodes / t.statistics.decoder_calls for s, t in trials.items()}
    assert nodes[narrow] <= 7 < nodes[wide] <= 1 + 4 * 6


def test_an_unverified_rule_is_tuned_in_chains_of_fixed_depth():
    tuning = tune(make_task(Prices(), acceptance="threshold"))
    assert {(s.width, s.lookahead) for s in tuning.trials} == {(1, FIXED)}


def test_other_tokens_are_an_error_with_names():
    task = make_task(Prices(), error=9.0)
    with pytest.raises(InputError, match=r"^[ab]: with heads, .*depth \d.*without drafts \["):
        tune(task)


def test_rounding_may_change_tokens():
    tuning = tune(make_task(Prices(), error=9.0, rounding=True))
    assert tuning.different[NO_DRAFTS] == []
    assert any(keys for keys in tuning.different.values())


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
def test_settings_that_change_the_text_are_not_chosen(acceptance, most_different, same, chosen):
    task = replace(make_task(Prices(), rounding=True), most_different=most_different)
    tuning = Tuning(replace(task, options=replace(task.options, acceptance=acceptance)))
    faster, slower = DraftSetting("faster", 4), DraftSetting("slower", 4)
    tuning.checked = {NO_DRAFTS: 3.0, faster: 1.0, slower: 2.0}
    tuning.different = {s: [] if s.drafter in same else ["a"] for s in (faster, slower)}
    assert tuning.chosen.drafter == chosen
    first = [slower, faster] if acceptance == "exact" and same == {"slower"} else [faster, slower]
    assert tuning.fastest([slower, faster], 2) == first


@pytest.mark.parametrize(("saved", "drafts"), [(MARGIN / 2, False), (2 * MARGIN, True)])
def test_drafts_must_save_more_than_the_margin(saved, drafts):
    tuning, setting = Tuning(make_task(Prices())), DraftSetting("heads", 4)
    tuning.different = {NO_DRAFTS: [], setting: []}
    tuning.checked = {NO_DRAFTS: 3.0, setting: 3.0 * (1 - saved)}
    assert tuning.chosen == (setting if drafts else NO_DRAFTS)


def test_without_drafters_the_baseline_is_chosen():
    tuning = tune(make_task(Prices(offers={})), ["drafter: heads; none"])
    assert tuning.chosen == NO_DRAFTS and [*tuning.trials] == [NO_DRAFTS]
    assert not tuning.checked and tuning.left_out == ["drafter: heads; none"]


@pytest.mark.parametrize(
    ("output", "tie", "differs"),
    [
        ([((1, 2), -1.0), ((1, 3), -1.00001)], 0.0, False),
        ([((1, 3), -1.0), ((1, 2), -1.00001)], 1e-4, False),
        ([((1, 3), -1.0), ((1, 2), -1.00001)], 0.0, True),
        ([((1, 3), -1.0), ((1, 2), -2.0)], 1e-4, True),
        ([((1, 2), -1.0)], 1e-4, True),
    ],
)
def test_only_ties_may_change_places(output, tie, differs):
    baseline = Trial(None, outputs={"a": [((1, 2), -1.0), ((1, 3), -1.00001)]})
    assert Trial(None, outputs={"a": output}).differing(baseline, tie) == ["a"] * differs
