"""The clock, the candidates, and the tuner, which finds the fastest drafter and setting."""

import time
from dataclasses import replace

import pytest
import torch
from cases import cases, combinations
from charged import Offer, Prices, make_task

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.search_options import CTC, CTC_HEADS, FIXED, HEADS, MODEL
from espnet_medusa.recipes.tuning.available import NO_DRAFTS, DraftSetting
from espnet_medusa.recipes.tuning.candidates import (
    LOOKAHEADS,
    candidates,
    depths,
    widths,
    with_budgets,
)
from espnet_medusa.recipes.tuning.findings import MARGIN, Tuning
from espnet_medusa.recipes.tuning.stopwatch import CALLS, DRAFTING, Clock
from espnet_medusa.recipes.tuning.trial import Trial, run_trials
from espnet_medusa.recipes.tuning.tuner import round_ends, tune


@pytest.mark.parametrize("threads", [1, 2])
def test_only_one_thread_does_not_count_waiting(monkeypatch, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    clock = Clock(torch.device("cpu"))
    started = clock.now()
    time.sleep(0.1)
    waited = clock.now() - started
    assert waited < 0.05 if threads == 1 else waited >= 0.1
    while clock.now() - started < 0.05:
        sum(range(1000))


@combinations(beam_size=[None, 3], kind=[HEADS, CTC])
def test_timing_changes_nothing_and_finds_the_seconds_of_each_part(kind, beam_size):
    prices = Prices(offers={"draft": Offer(0.01, begin=0.3, kind=kind)})
    task, setting = make_task(prices, beam_size), DraftSetting("draft", 4, 3)
    trial = Trial(task.redraft(setting))
    run_trials(task, {setting: trial}, task.batches, "test")
    search, spent = task.redraft(setting), prices.spent
    states = [batch.decode(search, task.limits, "draft")[0] for batch in task.batches]
    statistics = sum((state.statistics for state in states[1:]), states[0].statistics)
    assert trial.seconds == pytest.approx(prices.spent - spent)
    for name in ("decoder_calls", "nodes", "tokens", "drafted", "accepted"):
        assert getattr(trial.statistics, name) == getattr(statistics, name)
    assert trial.batch_calls == statistics.decoder_calls
    evaluated = prices.call * statistics.decoder_calls + prices.node * statistics.nodes
    assert trial.part_seconds[CALLS] == pytest.approx(evaluated)
    assert sum(trial.part_seconds.values()) == pytest.approx(trial.seconds)
    assert trial.part_seconds[DRAFTING] > 2 * 0.3
    assert trial.outputs["a"] == [(tuple(h.tokens), h.score) for h in states[0].n_best[:1]]
    assert task.search.planner.shape.depth == 0, "the given search is not changed"


@cases(
    (HEADS, True, 8, 8, [2, 3, 4, 6, 8]), (HEADS, True, 8, None, [2, 3, 4, 6, 8, 12, 16]),
    (HEADS, False, 1, 1, [1]), (HEADS, True, 3, 3, [1, 2, 3]), (HEADS, True, 1, None, [1, 2]),
    (CTC, True, 0, None, [5, 10, 15, 20, 30, 40, 60]),
    (CTC_HEADS, True, 8, None, [5, 10, 15, 20, 30, 40, 60]),
    (CTC, False, 0, None, [1, 2, 4, 6, 10, 15, 20]), (MODEL, True, 8, None, [1, 2, 3, 4, 6, 8, 12]),
)  # fmt: skip
def test_depths(kind, greedy, num_heads, max_steps, expected):
    assert depths(kind, greedy, num_heads, max_steps) == expected


@cases((5, False, [3, 5, 10]), (1, False, [1, 2]), (None, False, [1, 2, 4]), (None, True, [1]))
def test_widths(beam_size, chain_only, expected):
    assert widths(beam_size, chain_only) == expected


@cases(
    (DraftSetting("heads", 10, 1), 1, []),
    (DraftSetting("heads", 10, 5), 5, [25]),
    (DraftSetting("heads", 2, 5), 5, []),
    (DraftSetting("ctc", 20, 5, 60), 5, [30, 120]),
    (DraftSetting("ctc", 10, 5, 60), 5, [25]),
    ids=["chain", "half of the largest", "no room", "default exceeded", "default not reached"],
)
def test_budgets_bind_and_leave_room_for_drafts(setting, least, expected):
    assert with_budgets(setting, least) == [replace(setting, budget=b) for b in expected]


@pytest.mark.parametrize("beam_size", [None, 3])
def test_each_lookahead_has_a_group(beam_size):
    task = make_task(Prices(offers={"draft": Offer(kind=CTC)}), beam_size)
    drafter = task.drafters["draft"]
    drafter.proposers[0.3] = drafter.proposers[None]
    groups, tried = candidates(task, drafter), depths(CTC, beam_size is None, 4, None)
    for lookahead, group in zip(LOOKAHEADS, groups, strict=True):
        assert len(group) == len({*group}) and {s.lookahead for s in group} == {lookahead}
        assert {s.width for s in group} == {*widths(beam_size)}
        assert {s.share for s in group} == {None, 0.3}
    assert [{s.depth for s in group} for group in groups] == [{*tried}, {tried[-1]}]


@cases((HEADS, None, True), (MODEL, None, True), (CTC, None, False), (HEADS, 3, False))
def test_minimum_probabilities_are_tried_in_greedy_chains(kind, beam_size, tried):
    task = make_task(Prices(offers={"draft": Offer(kind=kind)}), beam_size)
    settings = [s for group in candidates(task, task.drafters["draft"]) for s in group]
    chosen = [s for s in settings if s.min_probability is not None]
    assert bool(chosen) == tried and {s.width for s in chosen} <= {1}
    assert all("minimum probability 0." in str(s) for s in chosen)
    assert all(s.options()["draft_min_probability"] == s.min_probability for s in settings)


@pytest.fixture
def few_candidates(monkeypatch):
    """Try fewer settings; others test which ones are tried."""
    for name, tried in {
        "DEPTH_SHARES": (0.25, 0.5, 1.0), "DEPTH_SHARES_BEYOND": (2.0,), "MODEL_DEPTHS": (1, 4, 8),
        "CTC_DEPTHS": (5, 10, 40), "CTC_BEAM_DEPTHS": (1, 4, 15), "GREEDY_WIDTHS": (1, 3),
        "BEAM_WIDTH_SHARES": (0.6, 2.0), "MIN_PROBABILITIES": (0.3,),
    }.items():  # fmt: skip
        monkeypatch.setattr(f"espnet_medusa.recipes.tuning.candidates.{name}", tried)


@pytest.mark.parametrize("beam_size", [None, 3])
@cases((1.0, 0.001, 0.001, True), (1.0, 0.05, 0.02, True), (1.0, 0.2, 5.0, False))
@pytest.mark.usefixtures("few_candidates")
def test_the_fastest_setting_of_all_candidates_is_chosen(call, node, row, drafts, beam_size):
    task = make_task(Prices(call, node, {"heads": Offer(row)}), beam_size, utterances=4)
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


@cases(
    (3, {"heads": Offer(0.01), "ctc": Offer(0.2, kind=CTC)}, "heads"),
    (3, {"heads": Offer(0.2), "small": Offer(0.01, encoder=0.1, kind=MODEL)}, "small"),
    (None, {"heads": Offer(0.2), "ctc": Offer(0.01, kind=CTC)}, "ctc"),
    # A drafter that is cheap but wrong, or has a high price per batch, does not win.
    (None, {"heads": Offer(0.05), "ctc": Offer(0.0, error=9.0, kind=CTC)}, "heads"),
    (None, {"heads": Offer(0.05), "ctc": Offer(0.0, begin=9.0, kind=CTC)}, "heads"),
    (None, {"heads": Offer(0.05), "small": Offer(0.0, encoder=9.0, kind=MODEL)}, "heads"),
    (None, {"heads": Offer(9.0), "small": Offer(0.0, encoder=99.0, kind=MODEL)}, "baseline"),
)
@pytest.mark.usefixtures("few_candidates")
def test_the_fastest_drafter_is_chosen(beam_size, offers, winner):
    tuning = tune(make_task(Prices(offers=offers), beam_size))
    assert tuning.chosen.drafter == winner
    assert {setting.drafter for setting in tuning.checked} == {"baseline", *offers}
    for name, offer in offers.items():
        best = tuning.best_checked(name)
        seconds = 1.0 + 2 * offer.encoder + tuning.checked[best]
        assert tuning.total_seconds(best) == pytest.approx(seconds)
        parts = tuning.parts(best)
        assert sum(parts.values()) == pytest.approx(tuning.total_seconds(best))
        assert parts["draft model's encoder"] == 2 * offer.encoder
        assert parts[DRAFTING] >= 2 * offer.begin * 0.99


def test_half_of_a_group_goes_on_and_finalists_decode_all_utterances():
    for sizes, ends in {(30, 16): [4, 8, 15, 30], (30, 63): [2, 4, 8, 15, 30]}.items():
        assert round_ends(*sizes) == ends, "rounds double their batches and end with all"
    assert (round_ends(3, 8), round_ends(1, 1)) == ([2, 3], [1])
    task = make_task(Prices(), utterances=8)
    tuning = tune(task)
    for group in candidates(task, task.drafters["heads"]):
        counts = sorted(len(tuning.trials[setting].outputs) for setting in group)
        assert 1 <= counts.count(8) <= max(len(group) // 2, 2) < len(group)
    assert all(len(tuning.trials[setting].outputs) == 8 for setting in [NO_DRAFTS, *tuning.checked])


def test_budgets_hold():
    task = make_task(Prices())
    wide, narrow = DraftSetting("heads", 6, 4), DraftSetting("heads", 6, 4, 7)
    trials = {setting: Trial(task.redraft(setting)) for setting in (wide, narrow)}
    run_trials(task, trials, task.batches, "test")
    nodes = {s: t.statistics.nodes / t.statistics.decoder_calls for s, t in trials.items()}
    assert nodes[narrow] <= 7 < nodes[wide] <= 1 + 4 * 6


@cases(("threshold", {1}), ("typical", {1, 2, 4}), ("top_m", {1, 2, 4}))
def test_only_an_exact_rule_is_tuned_with_lookaheads(acceptance, tried):
    tuning = tune(make_task(Prices(), acceptance=acceptance))
    assert {s.lookahead for s in tuning.trials} == {FIXED}
    assert {s.width for s in tuning.trials} == tried


@pytest.mark.usefixtures("few_candidates")
def test_other_tokens_are_an_error_with_names_unless_sums_round():
    with pytest.raises(InputError, match=r"^[ab]: with heads, .*depth \d.*without drafts \["):
        tune(make_task(Prices(), error=9.0))
    tuning = tune(make_task(Prices(), error=9.0, rounding=True))
    assert tuning.different[NO_DRAFTS] == [] and any(tuning.different.values())


@cases(
    ("exact", 0, {"slower"}, "slower"),
    ("exact", 0, {"faster", "slower"}, "faster"),
    ("exact", 0, set(), "baseline"),
    ("exact", 1, set(), "faster"),
    ("typical", 0, {"slower"}, "faster"),
)
def test_settings_that_change_the_text_are_not_chosen(acceptance, most_different, same, chosen):
    task = make_task(Prices(), rounding=True, acceptance=acceptance)
    tuning = Tuning(replace(task, most_different=most_different))
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


@cases(
    ([((1, 2), -1.0), ((1, 3), -1.00001)], 0.0, False),
    ([((1, 3), -1.0), ((1, 2), -1.00001)], 1e-4, False),
    ([((1, 3), -1.0), ((1, 2), -1.00001)], 0.0, True),
    ([((1, 3), -1.0), ((1, 2), -2.0)], 1e-4, True),
    ([((1, 2), -1.0)], 1e-4, True),
)
def test_only_ties_may_change_places(output, tie, differs):
    baseline = Trial(None, outputs={"a": [((1, 2), -1.0), ((1, 3), -1.00001)]})
    assert Trial(None, outputs={"a": output}).differing(baseline, tie) == ["a"] * differs
