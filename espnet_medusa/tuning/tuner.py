"""Which drafts pay: settings tried with the real search, costs measured, the fastest chosen.

1. Grid: no drafts, then every depth with every width, without budget. Depths are shares of the
   trained heads, and beyond where the surrogate can go on; widths are multiples of the beam.
2. Refinement: depths halfway to the neighbours of the best one, at its width.
3. Budgets: for the best depth of each width, shares of its largest draft.
4. Again: the best few and no drafts, in turns, to have more samples of what they cost.
5. Check: the best drafts against no drafts in turns, nothing in between timed. It decides whether
   drafts pay at all.

No drafts and the best so far take part in every stage. After each stage costs are fitted to all
runs so far; «best» is what they predict from each setting's own counts. Counts do not depend on
what else the machine does, and costs are medians over all runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tqdm import tqdm

from espnet_medusa.errors import InputError
from espnet_medusa.search.beam import BeamSearch
from espnet_medusa.tuning.cost import SearchCost, fit_cost
from espnet_medusa.tuning.setting import (
    NO_DRAFTS,
    DraftSetting,
    between,
    depths,
    grid,
    widths,
    with_budgets,
)
from espnet_medusa.tuning.trial import Output, Task, Trial, differing, redraft, run_trials

FINALISTS = 3
FINAL_ROUNDS = 2
CHECK_ROUNDS = 5
AS_GOOD = 0.02  # of two settings so close the one with fewer nodes wins, or no drafts
TIE = 1e-4  # hypotheses whose scores are so close may change places: sums round differently


@dataclass(frozen=True)
class Check:
    """The best drafts against no drafts, in turns.

    Attributes:
        plain_seconds: Search over all utterances without drafts, median of the rounds by batch.
        tuned_seconds: The same with drafts.
    """

    plain_seconds: float
    tuned_seconds: float

    @property
    def ratio(self) -> float:
        """How many times faster drafts were."""
        return self.plain_seconds / self.tuned_seconds


@dataclass
class Tuning:
    """What was found.

    Attributes:
        trials: By setting; the first run of each.
        reruns: Further runs, for their times.
        cost: Fitted to all of them.
        seconds: Predicted by it, of the search over all utterances, by setting.
        chosen: The best drafts where the check finds that they pay, else no drafts.
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
        task: What to decode, and with which search.
    """

    def __init__(self, task: Task):
        self.task = task
        self.found = Tuning()
        self.must_agree = task.options.acceptance == "exact" and not task.rounding
        beam = isinstance(task.search, BeamSearch)
        self.beam_size = task.search.strategy.beam_size if beam else None
        self.widths = widths(self.beam_size, chain_only=task.options.acceptance == "threshold")

    def tune(self) -> Tuning:
        """Find the fastest setting.

        Raises:
            InputError: A setting's output is not that of no drafts although the rule is exact.
        """
        found, decoder = self.found, self.task.search.decoder
        run_trials(self.task, [NO_DRAFTS], "warming up")
        surrogate = decoder.surrogate()
        if surrogate is None:
            self._try([], "no drafts")
            return found
        tried = depths(decoder.num_heads, surrogate.max_steps)
        self._try(grid(tried, self.widths), "depths and widths")
        best = found.best_drafts()
        more = between(tried, best.depth, surrogate.max_steps)
        self._try([best, *grid(more, [best.width])], "more depths")
        by_width = [found.best_drafts(width) for width in self.widths]
        most_nodes = [found.trials[setting].most_nodes for setting in by_width]
        limited = with_budgets(by_width, most_nodes, self.beam_size or 1)
        self._try([found.best_drafts(), *limited], "budgets")
        finalists = [setting for setting in found.ranking() if setting.depth > 0][:FINALISTS]
        for _ in range(FINAL_ROUNDS):
            self._try(finalists, "the best again")
        found.drafted = found.best_drafts()
        found.check = self._check(found.drafted)
        if found.check.ratio > 1 + AS_GOOD:
            found.chosen = found.drafted
        return found

    def _try(self, settings: Sequence[DraftSetting], stage: str) -> None:
        """Run settings and no drafts, and learn from them."""
        found = self.found
        for setting, trial in run_trials(self.task, [NO_DRAFTS, *settings], stage).items():
            if setting in found.trials:
                found.reruns.append(trial)
                continue
            found.trials[setting] = trial
            tie = 0.0 if self.beam_size is None else TIE
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

    def _check(self, setting: DraftSetting) -> Check:
        """Time a setting against no drafts, batch by batch and in turns."""
        task = self.task
        searches = [redraft(task.search, task.options, s) for s in (NO_DRAFTS, setting)]
        seconds = np.zeros((CHECK_ROUNDS, len(task.batches), 2))
        for turn in tqdm(range(CHECK_ROUNDS), desc="check", unit="round", mininterval=1.0):
            for number, batch in enumerate(task.batches):
                for which in (0, 1) if (turn + number) % 2 == 0 else (1, 0):
                    started = task.clock.now()
                    batch.decode(searches[which], task.limits)
                    seconds[turn, number, which] = task.clock.now() - started
        plain, tuned = np.median(seconds, axis=0).sum(axis=0).tolist()
        return Check(plain, tuned)


def _brief(output: Output, most: int = 12) -> str:
    best = output[0] if output else ()
    return str([*best[:most], *(["..."] if len(best) > most else [])])
