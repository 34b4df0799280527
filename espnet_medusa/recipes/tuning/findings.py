"""The measurements of a tuning, and the setting that it chooses."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from espnet_medusa.recipes.tuning.available import NO_DRAFTS, DraftSetting
from espnet_medusa.recipes.tuning.stopwatch import CALLS, DRAFTING
from espnet_medusa.recipes.tuning.trial import Task, Trial

MARGIN = 0.02  # share of the baseline's search time that chosen drafts must save


@dataclass
class Tuning:
    task: Task  # the tuned search and its utterances
    left_out: list[str] = field(default_factory=list)  # as in ``Available``
    # By setting; dropped candidates have decoded a part of the batches.
    trials: dict[DraftSetting, Trial] = field(default_factory=dict)
    # Utterances whose output is not the baseline's, of those decoded.
    different: dict[DraftSetting, list[str]] = field(default_factory=dict)
    # Search seconds of all utterances in the check, of finalists and the baseline.
    checked: dict[DraftSetting, float] = field(default_factory=dict)

    @property
    def num_utterances(self) -> int:
        return sum(len(batch.keys) for batch in self.task.batches)

    @property
    def encoder_seconds(self) -> float:
        """Seconds of the main model's encoder, all utterances."""
        return sum(batch.encoder_seconds for batch in self.task.batches)

    def draft_encoder_seconds(self, drafter: str) -> float:
        """Seconds of the drafter's own encoder, all utterances."""
        return sum(batch.draft_encoder_seconds(drafter) for batch in self.task.batches)

    def seconds(self, setting: DraftSetting) -> float:
        """Search seconds of all utterances: checked, or estimated for dropped candidates.

        The estimate is the ratio to the baseline on the same batches, times the baseline's seconds.
        """
        if setting in self.checked:
            return self.checked[setting]
        trial, baseline = self.trials[setting], self.trials[NO_DRAFTS]
        same = sum(baseline.batch_seconds[: len(trial.batch_seconds)])
        return trial.seconds / same * self.checked.get(NO_DRAFTS, baseline.seconds)

    def calls(self, setting: DraftSetting) -> float:
        """Decoder calls per utterance; for dropped candidates an estimate as in ``seconds``."""
        trial, baseline = self.trials[setting], self.trials[NO_DRAFTS]
        same = sum(s.decoder_calls for s in baseline.batch_statistics[: len(trial.batch_seconds)])
        ratio = trial.statistics.decoder_calls / same
        return ratio * baseline.statistics.decoder_calls / self.num_utterances

    def total_seconds(self, setting: DraftSetting) -> float:
        """Seconds of all utterances, encoders included."""
        encoders = self.encoder_seconds + self.draft_encoder_seconds(setting.drafter)
        return encoders + self.seconds(setting)

    def speedup(self, setting: DraftSetting) -> float:
        """Return the speedup over the baseline, encoders included."""
        return self.total_seconds(NO_DRAFTS) / self.total_seconds(setting)

    def parts(self, setting: DraftSetting) -> dict[str, float]:
        """Seconds by part: the trial's shares of ``seconds``, and the encoders."""
        trial, search = self.trials[setting], self.seconds(setting)
        parts = {name: search / trial.seconds * s for name, s in trial.part_seconds.items()}
        return {
            "encoder": self.encoder_seconds,
            CALLS: parts[CALLS],
            "draft model's encoder": self.draft_encoder_seconds(setting.drafter),
            DRAFTING: parts[DRAFTING],
            "the rest": search - parts[CALLS] - parts[DRAFTING],
        }

    def fastest(self, settings: Sequence[DraftSetting], count: int) -> list[DraftSetting]:
        """Return ``count`` settings, fastest first.

        With an exact acceptance rule, settings that change the output come last.
        """

        def rank(setting: DraftSetting) -> tuple[bool, float]:
            return self.task.exact and bool(self.different[setting]), self.seconds(setting)

        return sorted(settings, key=rank)[:count]

    def best_checked(self, drafter: str) -> DraftSetting:
        """Return a drafter's finalist that ``fastest`` puts first."""
        return self.fastest([s for s in self.checked if s.drafter == drafter], 1)[0]

    @property
    def faster(self) -> list[DraftSetting]:
        """Settings that were faster than the baseline in the check by more than ``MARGIN``."""
        if not self.checked:
            return []
        enough = self.total_seconds(NO_DRAFTS) - MARGIN * self.checked[NO_DRAFTS]
        return [s for s in self.checked if s != NO_DRAFTS and self.total_seconds(s) < enough]

    @property
    def chosen(self) -> DraftSetting:
        """The fastest setting in the check, encoders included; the baseline if none is faster.

        With the exact rule, settings that change more outputs than allowed are not chosen.
        """
        most = self.task.most_different if self.task.exact else self.num_utterances
        allowed = [s for s in self.faster if len(self.different[s]) <= most]
        return min(allowed, key=self.total_seconds, default=NO_DRAFTS)
