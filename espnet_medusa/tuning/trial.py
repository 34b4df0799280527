"""Settings tried on the held-out utterances with the real search."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tqdm import tqdm

from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.beam import BeamSearch, BeamState, BeamStrategy
from espnet_medusa.search.build import draft_shape
from espnet_medusa.search.greedy import GreedySearch, GreedyStrategy
from espnet_medusa.search.options import LengthLimits, SearchOptions
from espnet_medusa.search.state import SearchState
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.tuning.available import Drafter
from espnet_medusa.tuning.held_out import HeldOutBatch
from espnet_medusa.tuning.setting import DraftSetting
from espnet_medusa.tuning.stopwatch import Clock, Iteration, PhaseLog, timed

Search = GreedySearch | BeamSearch
Output = tuple[tuple[int, ...], ...]  # token ids of an utterance's n-best list


@dataclass
class Trial:
    """What a setting gave and cost.

    Attributes:
        drafter: Who drafted.
        statistics: Of all utterances.
        iterations: Of all batches.
        outputs: N-best tokens by utterance id.
        scores: Their scores.
        most_nodes: Nodes of the largest draft of one utterance.
        setup_seconds: Before the first decoder calls, all batches together.
        begin_seconds: What the drafter does once for each batch, of all.
        seconds: Of the searches, with the timing in it, once.
    """

    drafter: str
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    iterations: list[Iteration] = field(default_factory=list)
    outputs: dict[str, Output] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)
    most_nodes: int = 0
    setup_seconds: float = 0.0
    begin_seconds: float = 0.0
    seconds: float = 0.0

    def run(self, search: Search, batch: HeldOutBatch, task: "Task") -> None:
        """Decode one batch with the timing on, and add what it gave."""
        log = PhaseLog(task.clock)
        search, started = timed(search, log), task.clock.now()
        log.begin()
        states = batch.decode(search, task.limits, self.drafter)
        log.close()
        self.seconds += task.clock.now() - started
        self.setup_seconds += log.setup_seconds
        self.most_nodes = max(self.most_nodes, log.most_nodes)
        self.iterations += log.iterations
        self.begin_seconds += sum(iteration.begin_seconds for iteration in log.iterations)
        for key, state in zip(batch.keys, states, strict=True):
            self.outputs[key], self.scores[key] = output_of(state, task.nbest)
            self.statistics += state.statistics


@dataclass(frozen=True)
class Task:
    """What is the same for all settings.

    Attributes:
        search: To be tuned; it drafts nothing.
        options: Those it was built from.
        drafters: What there is to draft with, by name.
        batches: Held-out utterances.
        limits: Of the lengths.
        nbest: Hypotheses to compare.
        clock: Tells the time.
        rounding: Whether the arithmetic is so coarse that other sums give other tokens.
        most_different: Utterances that may differ for it in what is chosen.
    """

    search: Search
    options: SearchOptions
    drafters: Mapping[str, Drafter]
    batches: list[HeldOutBatch]
    limits: LengthLimits
    nbest: int
    clock: Clock
    rounding: bool = False
    most_different: int = 0

    @property
    def beam_size(self) -> int | None:
        """B; None with greedy search."""
        beam = isinstance(self.search, BeamSearch)
        return self.search.strategy.beam_size if beam else None


def run_trials(
    task: Task, settings: Sequence[DraftSetting], title: str
) -> dict[DraftSetting, Trial]:
    """Decode all utterances with every setting, batch by batch.

    Every batch is decoded with all settings in turn, beginning with another one each time: when
    the machine gets busy it does so for all of them.

    Args:
        task: What to decode, and with which search.
        settings: How to draft.
        title: Of the progress bar.
    """
    searches = {setting: redraft(task, setting) for setting in settings}
    trials = {setting: Trial(setting.drafter) for setting in searches}
    total = len(searches) * len(task.batches)
    with tqdm(total=total, desc=title, unit="run", mininterval=1.0) as bar:
        for number, batch in enumerate(task.batches):
            first = number % len(searches)
            for setting in [*searches][first:] + [*searches][:first]:
                trials[setting].run(searches[setting], batch, task)
                bar.update()
    return trials


def redraft(task: Task, setting: DraftSetting) -> Search:
    """The same search with other drafts.

    Args:
        task: Its search is left as it is.
        setting: How to draft.

    Raises:
        InputError: The model cannot draft like that.
    """
    options, proposer = replace(task.options, **setting.options()), None
    if setting.depth > 0:
        proposer = task.drafters[setting.drafter].proposers[setting.share]
    changed = copy.copy(task.search)
    old = task.search.strategy
    shape = draft_shape(options, task.search.decoder, proposer, width=task.beam_size or 1)
    if isinstance(task.search, GreedySearch):
        strategy = GreedyStrategy(old.scoring, old.rule, old.best_tokens, shape.width)
    else:
        strategy = BeamStrategy(old.scoring, old.beam_size, shape.width)
    changed.drafter = RunAhead(strategy, proposer, shape)
    return changed


def output_of(state: SearchState, nbest: int) -> tuple[Output, list[float]]:
    """Token ids of the best hypotheses, and their scores."""
    if isinstance(state, BeamState):
        ended = state.ended[:nbest]
        return tuple(tuple(e.tokens) for e in ended), [e.score for e in ended]
    return (tuple(state.tokens),), [state.hypothesis.score]


def differing(trial: Trial, plain: Trial, tie: float = 0.0) -> list[str]:
    """Utterances whose n-best list is another one.

    Args:
        trial: To be looked at.
        plain: What it should have given.
        tie: Where the scores of all ranks differ by less, hypotheses have only changed places.
    """
    found = []
    for key, expected in plain.outputs.items():
        if trial.outputs[key] == expected:
            continue
        scores = trial.scores[key], plain.scores[key]
        same_size = len(trial.outputs[key]) == len(expected)
        if not same_size or max(abs(x - y) for x, y in zip(*scores, strict=True)) >= tie:
            found.append(key)
    return found
