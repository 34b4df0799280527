"""Decode held-out batches with draft settings, and time them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tqdm import tqdm

from espnet_medusa.decoding.search.beam import BeamStrategy
from espnet_medusa.decoding.search.build import draft_shape
from espnet_medusa.decoding.search.drafting.step_planner import StepPlanner
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.search_options import THRESHOLD, LengthLimits, SearchOptions
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.recipes.tuning.available import Drafter, DraftSetting
from espnet_medusa.recipes.tuning.held_out import HeldOutBatch
from espnet_medusa.recipes.tuning.stopwatch import CALLS, DRAFTING, Clock, Stopwatch, timed

TIE = 1e-4  # score difference of beam hypotheses below which rounding may change their order

Output = list[tuple[tuple[int, ...], float]]  # an utterance's n-best list: token ids and score


@dataclass(frozen=True)
class Task:
    """The search to tune, its drafters and the held-out utterances."""

    search: Search  # decodes without drafts
    options: SearchOptions  # the options it was built from
    drafters: Mapping[str, Drafter]  # by name
    batches: Sequence[HeldOutBatch]  # held-out utterances
    limits: LengthLimits  # bounds on output lengths
    nbest: int  # hypotheses to compare
    clock: Clock
    rounding: bool = False  # whether the precision is so low that batch shapes can change tokens
    most_different: int = 0  # how many outputs may differ with the chosen setting

    @property
    def beam_size(self) -> int | None:
        """Beam size; None with greedy search."""
        strategy = self.search.strategy
        return strategy.beam_size if isinstance(strategy, BeamStrategy) else None

    @property
    def exact(self) -> bool:
        """Whether drafts must not change the output, rounding aside."""
        return self.options.acceptance == "exact"

    @property
    def unverified(self) -> bool:
        """Whether drafts are accepted without verification."""
        return self.options.acceptance == THRESHOLD

    def redraft(self, setting: DraftSetting) -> Search:
        """Return the search with drafts of ``setting``; raise InputError if that is impossible."""
        options, proposer = replace(self.options, **setting.options()), None
        if setting.depth > 0:
            proposer = self.drafters[setting.drafter].proposers[setting.share]
        decoder = self.search.decoder
        shape = draft_shape(options, decoder, proposer, width=self.beam_size or 1)
        return Search(decoder, StepPlanner(self.search.strategy, proposer, shape))


@dataclass
class Trial:
    search: Search  # with the setting's drafts
    batch_seconds: list[float] = field(default_factory=list)  # search time of each batch
    # Of all batches, by part of the search.
    part_seconds: dict[str, float] = field(default_factory=lambda: {CALLS: 0.0, DRAFTING: 0.0})
    batch_calls: int = 0  # decoder calls of all batches
    batch_statistics: list[DecodingStatistics] = field(default_factory=list)  # of each batch
    outputs: dict[str, Output] = field(default_factory=dict)  # by utterance id

    @property
    def seconds(self) -> float:
        return sum(self.batch_seconds)

    @property
    def statistics(self) -> DecodingStatistics:
        return sum(self.batch_statistics, DecodingStatistics())

    def run(self, batch: HeldOutBatch, task: Task, drafter: str) -> None:
        stopwatch = Stopwatch(task.clock)
        search, started = timed(self.search, stopwatch), task.clock.now()
        states = batch.decode(search, task.limits, drafter)
        self.batch_seconds.append(task.clock.now() - started)
        for part in self.part_seconds:
            self.part_seconds[part] += stopwatch.seconds[part]
        self.batch_calls += stopwatch.calls["extend"]
        self.batch_statistics.append(sum((s.statistics for s in states), DecodingStatistics()))
        for key, state in zip(batch.keys, states, strict=True):
            self.outputs[key] = [(tuple(h.tokens), h.score) for h in state.n_best[: task.nbest]]

    def differing(self, baseline: "Trial", tie: float) -> list[str]:
        """Return the utterances whose output is not that of the baseline.

        Hypotheses whose scores differ by less than ``tie`` may change places.
        """
        pairs = {key: (output, baseline.outputs[key]) for key, output in self.outputs.items()}
        return [key for key, (output, other) in pairs.items() if _differs(output, other, tie)]


def _differs(output: Output, expected: Output, tie: float) -> bool:
    if [tokens for tokens, _ in output] == [tokens for tokens, _ in expected]:
        return False
    if len(output) != len(expected):
        return True
    return max(abs(x - y) for (_, x), (_, y) in zip(output, expected, strict=True)) >= tie


def run_trials(
    task: Task, trials: Mapping[DraftSetting, Trial], batches: Sequence[HeldOutBatch], title: str
) -> None:
    """Decode batches with every setting, and add the results to the trials.

    Settings take turns on each batch, in changing order: a busy machine then slows all of them.
    """
    settings = [*trials]
    with tqdm(total=len(settings) * len(batches), desc=title, unit="run", mininterval=1.0) as bar:
        for number, batch in enumerate(batches):
            first = number % len(settings)
            for setting in settings[first:] + settings[:first]:
                trials[setting].run(batch, task, setting.drafter)
                bar.update()
