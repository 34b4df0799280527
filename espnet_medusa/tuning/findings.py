"""What was found of the settings that were tried, and which of them to take."""

from collections.abc import Callable
from dataclasses import dataclass, field

from espnet_medusa.search.options import FIXED
from espnet_medusa.tuning.cost import SearchCost, fit_cost
from espnet_medusa.tuning.setting import NO_DRAFTS, DraftSetting
from espnet_medusa.tuning.trial import Task, Trial

AS_GOOD = 0.02  # of settings so close the one with fewest nodes wins, or no drafts

Seconds = dict[DraftSetting, float]


@dataclass
class Tuning:
    """What was found.

    Attributes:
        task: What was decoded.
        left_out: Why other drafters were not tried, a line each.
        trials: By setting; the first run of each.
        reruns: Further runs, for their times.
        cost: Fitted to all of them.
        seconds: Predicted by it, of the search over all utterances.
        different: Utterances whose output is not that of no drafts.
        checked: Search over all utterances, of the best settings of every drafter and of no
            drafts, measured in turns, nothing in between timed.
    """

    task: Task
    left_out: list[str] = field(default_factory=list)
    trials: dict[DraftSetting, Trial] = field(default_factory=dict)
    reruns: list[Trial] = field(default_factory=list)
    cost: SearchCost | None = None
    seconds: Seconds = field(default_factory=dict)
    different: dict[DraftSetting, list[str]] = field(default_factory=dict)
    checked: Seconds = field(default_factory=dict)

    def fit(self) -> None:
        """Learn costs from all runs so far, and predict with them."""
        self.cost = fit_cost([*self.trials.values(), *self.reruns])
        self.seconds = {setting: self.cost.seconds(trial) for setting, trial in self.trials.items()}

    @property
    def drafters(self) -> list[str]:
        """Names of those that were tried."""
        return [*dict.fromkeys(setting.drafter for setting in self.trials if setting.depth > 0)]

    @property
    def num_utterances(self) -> int:
        """How many were decoded."""
        return sum(len(batch.keys) for batch in self.task.batches)

    @property
    def encoder_seconds(self) -> float:
        """Of the main model's encoder, all utterances."""
        return sum(batch.encoder_seconds for batch in self.task.batches)

    def draft_encoder_seconds(self, drafter: str) -> float:
        """Of the drafter's own encoder, all utterances."""
        return sum(batch.draft_encoder_seconds(drafter) for batch in self.task.batches)

    def whole(self, setting: DraftSetting) -> float:
        """Seconds with the encoders: as checked, else as predicted."""
        search = self.checked.get(setting, self.seconds[setting])
        return self.encoder_seconds + self.draft_encoder_seconds(setting.drafter) + search

    def speedup(self, setting: DraftSetting) -> float:
        """How many times faster than no drafts, encoders included."""
        return self.whole(NO_DRAFTS) / self.whole(setting)

    def parts(self, setting: DraftSetting) -> dict[str, float]:
        """Seconds by part: shares as the trials had them, the sum as ``whole``."""
        predicted = self.cost.predict(self.trials[setting])
        scale = self.checked.get(setting, self.seconds[setting]) / self.seconds[setting]
        rest = sum(predicted[name] for name in ("setup", "walking", "other"))
        return {
            "encoder": self.encoder_seconds,
            "decoder calls": scale * predicted["decoder calls"],
            "draft model's encoder": self.draft_encoder_seconds(setting.drafter),
            "drafting": scale * predicted["drafting"],
            "the rest": scale * rest,
        }

    def best(
        self, drafter: str, allowed: Callable[[DraftSetting], bool] = lambda setting: True
    ) -> DraftSetting | None:
        """The fastest setting of a drafter; None where none is allowed.

        Where the text ought to be the same, one with which it is, if there is one. Of settings
        about as fast the one with fewest nodes.
        """
        members = [s for s in self.trials if s.drafter == drafter and allowed(s)]
        members = self._same_text_first(members)
        if not members:
            return None
        least = min(self.seconds[setting] for setting in members)
        close = [s for s in members if self.seconds[s] <= (1 + AS_GOOD) * least]
        return min(close, key=lambda setting: self.trials[setting].statistics.nodes)

    def best_fixed(self, drafter: str) -> DraftSetting:
        """The fastest without lookahead."""
        return self.best(drafter, lambda setting: setting.lookahead == FIXED)

    def best_checked(self, drafter: str) -> DraftSetting:
        """The setting of a drafter that was fastest in the check."""
        members = [setting for setting in self.checked if setting.drafter == drafter]
        return min(self._same_text_first(members), key=self.checked.get)

    @property
    def chosen(self) -> DraftSetting:
        """The fastest in the check, encoders included; no drafts if nothing is much faster.

        Where the text ought to be the same, none with which more utterances differ than may.
        """
        return min(filter(self.may_be_chosen, self.paying), key=self.whole, default=NO_DRAFTS)

    @property
    def paying(self) -> list[DraftSetting]:
        """Settings that were faster than no drafts in the check."""
        if not self.checked:
            return []
        enough = self.whole(NO_DRAFTS) - AS_GOOD * self.checked[NO_DRAFTS]
        return [s for s in self.checked if s != NO_DRAFTS and self.whole(s) < enough]

    def may_be_chosen(self, setting: DraftSetting) -> bool:
        """Whether its text is the same, or need not be."""
        exact = self.task.options.acceptance == "exact"
        return not exact or len(self.different[setting]) <= self.task.most_different

    def _same_text_first(self, settings: list[DraftSetting]) -> list[DraftSetting]:
        """Those with which no output differs, where the rule is exact and there are any."""
        same = [setting for setting in settings if not self.different[setting]]
        return same if same and self.task.options.acceptance == "exact" else settings
