"""Which drafts pay: settings tried with the real search, costs measured, the fastest chosen.

1. Grid: no drafts, then every depth with every width, without budget. Depths are shares of the
   trained heads, and beyond where the surrogate can go on; widths are multiples of the beam.
2. Refinement: depths halfway to the neighbours of the best one, at its width.
3. Budgets: for the best depth of each width, shares of its largest draft.
4. Again: the best few and no drafts, in turns, to have more samples of what they cost.
5. Check: the winner against no drafts in turns, nothing in between timed.

After each stage costs are fitted to all trials so far; «best» is what they predict from each
setting's own counts. Counts are the same whenever they are taken, so no setting wins because the
machine was quiet while it ran.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from espnet_medusa.errors import InputError
from espnet_medusa.search.beam import BeamSearch, LengthLimits
from espnet_medusa.search.build import SearchOptions
from espnet_medusa.search.greedy import GreedySearch
from espnet_medusa.tuning.cost import SearchCost, fit_cost
from espnet_medusa.tuning.held_out import HeldOutBatch
from espnet_medusa.tuning.setting import (
    NO_DRAFTS,
    DraftSetting,
    between,
    depths,
    grid,
    widths,
    with_budgets,
)
from espnet_medusa.tuning.stopwatch import Clock
from espnet_medusa.tuning.trial import Trial, differing, redraft, run_trial, time_batch

PLAIN_EVERY = 6  # trials: no drafts is tried again so often
FINALISTS = 3
FINAL_ROUNDS = 2
CHECK_ROUNDS = 5
AS_GOOD = 0.02  # of two settings so close the one with fewer nodes wins
TIE = 1e-3  # scores so close may change places: other sums round otherwise


@dataclass(frozen=True)
class Check:
    """Winner against no drafts, in turns.

    Attributes:
        plain_seconds: Search over all utterances without drafts, median of the rounds by batch.
        tuned_seconds: The same with the winner's drafts.
    """

    plain_seconds: float
    tuned_seconds: float

    @property
    def ratio(self) -> float:
        """How many times faster the winner was."""
        return self.plain_seconds / self.tuned_seconds


@dataclass
class Tuning:
    """What was found.

    Attributes:
        trials: By setting; the first run of each.
        reruns: Further runs, for their times.
        cost: Fitted to all of them.
        seconds: Predicted by it, of the search over all utterances, by setting.
        chosen: The fastest by prediction; no drafts where the check finds that drafts do not pay.
        drafted: The best setting that drafts, by prediction; None when there is none.
        check: Its times against no drafts; None when there is nothing to check.
        different: Utterances whose output is not that of no drafts, by setting.
    """

    trials: dict[DraftSetting, Trial] = field(default_factory=dict)
    reruns: list[Trial] = field(default_factory=list)
    cost: SearchCost | None = None
    seconds: dict[DraftSetting, float] = field(default_factory=dict)
    chosen: DraftSetting = NO_DRAFTS
    drafted: DraftSetting | None = None
    check: Check | None = None
    different: dict[DraftSetting, list[str]] = field(default_factory=dict)

    def fit(self) -> None:
        """Learn costs from all runs so far, and predict with them."""
        self.cost = fit_cost([*self.trials.values(), *self.reruns])
        self.seconds = {setting: self.cost.seconds(trial) for setting, trial in self.trials.items()}

    def ranking(self) -> list[DraftSetting]:
        """Settings, fastest first; of those about as fast as the best, fewest nodes first."""
        least = min(self.seconds.values())

        def rank(setting: DraftSetting) -> tuple[bool, float]:
            slower = self.seconds[setting] > (1 + AS_GOOD) * least
            nodes = self.trials[setting].statistics.nodes
            return slower, self.seconds[setting] if slower else nodes

        return sorted(self.seconds, key=rank)

    def best_drafts(self, width: int | None = None) -> DraftSetting:
        """The first of the ranking that drafts, with this width if one is given."""
        return next(
            setting
            for setting in self.ranking()
            if setting.depth > 0 and width in (None, setting.width)
        )


class Tuner:
    """Tries settings on held-out utterances.

    Args:
        search: To be tuned.
        options: Those it was built from.
        batches: Held-out utterances.
        limits: Of the lengths.
        nbest: Hypotheses that have to stay the same.
        clock: Tells the time.
        exact_arithmetic: Whether differing outputs are an error; in half precision rounding
            alone makes some.
    """

    def __init__(
        self,
        search: GreedySearch | BeamSearch,
        options: SearchOptions,
        batches: Sequence[HeldOutBatch],
        limits: LengthLimits,
        nbest: int,
        clock: Clock,
        exact_arithmetic: bool = True,
    ):
        self.search = search
        self.options = options
        self.batches = batches
        self.limits = limits
        self.nbest = nbest
        self.clock = clock
        self.must_agree = exact_arithmetic and options.acceptance == "exact"
        self.found = Tuning()
        self.since_plain = 0

    def tune(self) -> Tuning:
        """Find the fastest setting.

        Raises:
            InputError: A setting's output is not that of no drafts although the rule is exact.
        """
        found, surrogate = self.found, self.search.decoder.surrogate()
        self._run(NO_DRAFTS)  # warms up what a first run sets up
        self._try([NO_DRAFTS], "no drafts")
        if surrogate is None:
            return found
        tried = depths(self.search.decoder.num_heads, surrogate.max_steps)
        self._try(grid(tried, self._widths()), "depths and widths")
        best = found.best_drafts()
        more = between(tried, best.depth, surrogate.max_steps)
        self._try(grid(more, [best.width]), "more depths")
        by_width = [found.best_drafts(width) for width in self._widths()]
        most_nodes = [found.trials[setting].most_nodes for setting in by_width]
        self._try(with_budgets(by_width, most_nodes, self._beam_size or 1), "budgets")
        finalists = [setting for setting in found.ranking() if setting.depth > 0][:FINALISTS]
        self._run_again([NO_DRAFTS, *finalists] * FINAL_ROUNDS, "the best again")
        found.chosen = found.ranking()[0]
        found.drafted = found.best_drafts()
        found.check = self._check(found.drafted)
        if found.check.ratio <= 1:
            found.chosen = NO_DRAFTS
        return found

    @property
    def _beam_size(self) -> int | None:
        return self.search.strategy.beam_size if isinstance(self.search, BeamSearch) else None

    def _widths(self) -> list[int]:
        return widths(self._beam_size, chain_only=self.options.acceptance == "threshold")

    def _try(self, settings: Iterable[DraftSetting], stage: str) -> None:
        """Run settings that were not run before, and learn from them."""
        found = self.found
        todo = [setting for setting in settings if setting not in found.trials]
        for setting in tqdm(todo, desc=stage, unit="setting", mininterval=1.0):
            found.trials[setting] = trial = self._run(setting)
            plain = found.trials[NO_DRAFTS]
            found.different[setting] = differing(trial, plain, TIE if self._beam_size else 0.0)
            self._compare(setting)
            self.since_plain += 1
            if self.since_plain % PLAIN_EVERY == 0:
                found.reruns.append(self._run(NO_DRAFTS))
        found.fit()

    def _run_again(self, settings: Sequence[DraftSetting], stage: str) -> None:
        for setting in tqdm(settings, desc=stage, unit="run", mininterval=1.0):
            self.found.reruns.append(self._run(setting))
        self.found.fit()

    def _run(self, setting: DraftSetting) -> Trial:
        search = redraft(self.search, self.options, setting)
        return run_trial(search, setting, self.batches, self.limits, self.nbest, self.clock)

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

    def _check(self, setting: DraftSetting) -> Check:
        """Time a setting against no drafts, batch by batch and in turns."""
        searches = [redraft(self.search, self.options, s) for s in (NO_DRAFTS, setting)]
        seconds = np.zeros((CHECK_ROUNDS, len(self.batches), 2))
        for turn in tqdm(range(CHECK_ROUNDS), desc="check", unit="round", mininterval=1.0):
            for number, batch in enumerate(self.batches):
                order = (0, 1) if (turn + number) % 2 == 0 else (1, 0)
                for which in order:
                    seconds[turn, number, which] = time_batch(
                        searches[which], batch, self.limits, self.clock
                    )
        plain, tuned = np.median(seconds, axis=0).sum(axis=0).tolist()
        return Check(plain, tuned)


def _brief(output: Any, most: int = 12) -> str:
    best = output[0] if output else ()
    return str(list(best[:most]))[:-1] + (", ...]" if len(best) > most else "]")
