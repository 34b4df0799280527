"""Which drafts pay: settings tried with the real search, costs measured, the best compared.

1. Depths: every drafter at several depths, as wide as the search, without lookahead.
2. Neighbours of each drafter's best: depths halfway to the next; and, unless the drafter is far
   behind the fastest, other widths and other shares of CTC.
3. Lookaheads; and, as before, budgets.
4. Check: of every drafter the best fixed depth and each lookahead, and no drafts, in turns, nothing
   in between timed. It decides.

No drafts take part in every stage. After each stage costs are fitted to all runs so far; «best» is
what they predict from each setting's own counts. Counts do not depend on what else the machine
does, and costs are medians over all runs.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from espnet_medusa.errors import InputError
from espnet_medusa.search.options import FIXED, LOOKAHEADS
from espnet_medusa.tuning.available import Drafter
from espnet_medusa.tuning.findings import Seconds, Tuning
from espnet_medusa.tuning.setting import (
    NO_DRAFTS,
    DraftSetting,
    between,
    depths,
    widths,
    with_budgets,
)
from espnet_medusa.tuning.trial import Output, Task, differing, redraft, run_trials

FAR_BEHIND = 1.3  # times as long as the fastest so far
CHECK_SECONDS, CHECK_ROUNDS = 60.0, 5  # at most, but for a round
TIE = 1e-4  # hypotheses whose scores are so close may change places: sums round differently


class Tuner:
    """Tries settings on held-out utterances.

    Args:
        task: What to decode, with which search, and what drafts.
        left_out: Why other drafters are not among them.
    """

    def __init__(self, task: Task, left_out: Sequence[str] = ()):
        self.task = task
        self.found = Tuning(task, [*left_out])
        self.unverified = task.options.acceptance == "threshold"
        self.must_agree = task.options.acceptance == "exact" and not task.rounding
        self.widths = widths(task.beam_size, chain_only=self.unverified)

    def tune(self) -> Tuning:
        """Find the fastest setting.

        Raises:
            InputError: A setting's output is not that of no drafts although the rule is exact.
        """
        found, drafters = self.found, self.task.drafters.values()
        first = {drafter.name: self._depths(drafter) for drafter in drafters}
        warm = [settings[0] for settings in first.values()]
        run_trials(replace(self.task, batches=self.task.batches[:1]), [NO_DRAFTS, *warm], "warm-up")
        self._try([setting for settings in first.values() for setting in settings], "depths")
        near = self._not_far_behind()
        self._try([s for d in drafters for s in self._neighbours(d, d in near)], "neighbours")
        near = self._not_far_behind()
        last = [limited for drafter in near for limited in self._budgets(drafter)]
        last += [setting for drafter in drafters for setting in self._lookaheads(drafter)]
        self._try(last, "budgets and lookaheads")
        if drafters:
            found.checked = self._check(self._finalists())
        return found

    def _depths(self, drafter: Drafter) -> list[DraftSetting]:
        greedy = self.task.beam_size is None
        tried = depths(drafter.kind, greedy, self.task.search.decoder.num_heads, drafter.max_steps)
        share, width = next(iter(drafter.proposers)), self.task.beam_size or 1
        return [
            DraftSetting(drafter.name, depth, width, drafter.budget, share=share) for depth in tried
        ]

    def _neighbours(self, drafter: Drafter, all_ways: bool) -> list[DraftSetting]:
        """Of its best setting: depths, or all that can be changed."""
        best = self.found.best_fixed(drafter.name)
        tried = sorted({s.depth for s in self.found.trials if s.drafter == drafter.name})
        more = between(tried, best.depth, drafter.max_steps)
        found = [replace(best, depth=depth) for depth in more]
        if all_ways:
            found += [replace(best, width=width) for width in self.widths]
            found += [replace(best, share=share) for share in drafter.proposers]
        return [setting for setting in found if setting != best]

    def _budgets(self, drafter: Drafter) -> list[DraftSetting]:
        """For its best setting; where that is a chain, for its best tree."""
        found, name = self.found, drafter.name
        best = found.best_fixed(name)
        if best.width == 1:
            best = found.best(name, lambda s: s.lookahead == FIXED and s.width > 1)
        if best is None:
            return []
        return with_budgets(best, found.trials[best].most_nodes, self.task.beam_size or 1)

    def _lookaheads(self, drafter: Drafter) -> list[DraftSetting]:
        """As deep as anything that was tried, in the shape of the best fixed depth."""
        if self.unverified:
            return []
        best = self.found.best_fixed(drafter.name)
        deepest = max(s.depth for s in self.found.trials if s.drafter == drafter.name)
        others = [name for name in LOOKAHEADS if name != FIXED]
        return [replace(best, depth=deepest, lookahead=name) for name in others]

    def _not_far_behind(self) -> list[Drafter]:
        found = self.found
        best = {name: found.whole(found.best(name)) for name in found.drafters}
        least = min([found.whole(NO_DRAFTS), *best.values()])
        return [self.task.drafters[name] for name in best if best[name] <= FAR_BEHIND * least]

    def _finalists(self) -> list[DraftSetting]:
        found = self.found
        settings = [
            found.best(drafter, lambda setting, name=name: setting.lookahead == name)
            for drafter in found.drafters
            for name in LOOKAHEADS
        ]
        return [setting for setting in settings if setting is not None]

    def _try(self, settings: Sequence[DraftSetting], stage: str) -> None:
        """Run settings and no drafts, and learn from them."""
        found = self.found
        for setting, trial in run_trials(self.task, [NO_DRAFTS, *settings], stage).items():
            if setting in found.trials:
                found.reruns.append(trial)
                continue
            found.trials[setting] = trial
            tie = 0.0 if self.task.beam_size is None else TIE
            found.different[setting] = differing(trial, found.trials[NO_DRAFTS], tie)
            self._compare(setting)
        found.fit()

    def _compare(self, setting: DraftSetting) -> None:
        """Refuse drafts that change what the exact rule may not change."""
        keys = self.found.different[setting]
        if keys and self.must_agree:
            drafted, plain = self.found.trials[setting], self.found.trials[NO_DRAFTS]
            raise InputError(
                f"{keys[0]}: with {setting} the tokens are {_brief(drafted.outputs[keys[0]])}, "
                f"without drafts {_brief(plain.outputs[keys[0]])} (so for {len(keys)} of "
                f"{len(plain.outputs)} utterances); with acceptance: exact they must be the same: "
                "this is a defect of the search, or of the arithmetic of this device"
            )

    def _check(self, settings: Sequence[DraftSetting]) -> Seconds:
        """Time settings and no drafts, batch by batch and in turns: medians of the rounds."""
        task, settings = self.task, [NO_DRAFTS, *settings]
        searches = [redraft(task, setting) for setting in settings]
        rounds = int(CHECK_SECONDS / sum(self.found.seconds[setting] for setting in settings))
        rounds = min(max(rounds, 1), CHECK_ROUNDS)
        seconds = np.zeros((rounds, len(task.batches), len(settings)))
        with tqdm(total=seconds.size, desc="check", unit="run", mininterval=1.0) as bar:
            for turn in range(rounds):
                for number, batch in enumerate(task.batches):
                    for which in np.roll(np.arange(len(settings)), turn + number):
                        started = task.clock.now()
                        batch.decode(searches[which], task.limits, settings[which].drafter)
                        seconds[turn, number, which] = task.clock.now() - started
                        bar.update()
        return dict(zip(settings, np.median(seconds, axis=0).sum(axis=0).tolist(), strict=True))


def _brief(output: Output, most: int = 12) -> str:
    best = output[0] if output else ()
    return str([*best[:most], *(["..."] if len(best) > most else [])])
