"""One setting tried on the held-out utterances with the real search."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from espnet_medusa.draft.run_ahead import RunAhead
from espnet_medusa.search.beam import BeamSearch, BeamStrategy, BeamWalk, LengthLimits
from espnet_medusa.search.build import SearchOptions, draft_shape
from espnet_medusa.search.greedy import GreedySearch, GreedyStrategy
from espnet_medusa.search.walk import Walk
from espnet_medusa.statistics import DecodingStatistics
from espnet_medusa.tuning.held_out import HeldOutBatch
from espnet_medusa.tuning.setting import DraftSetting
from espnet_medusa.tuning.stopwatch import Clock, Iteration, PhaseLog, timed

Output = tuple[tuple[int, ...], ...]  # token ids of an utterance's n-best list


@dataclass(frozen=True)
class Trial:
    """What a setting gave and cost.

    Attributes:
        setting: How was drafted.
        statistics: Of all utterances.
        iterations: Of all batches.
        outputs: N-best tokens by utterance id.
        scores: Their scores.
        most_nodes: Nodes of the largest draft of one utterance.
        setup_seconds: Before the first decoder calls, all batches together.
        seconds: Of the searches, with the timing in it, once.
    """

    setting: DraftSetting
    statistics: DecodingStatistics
    iterations: list[Iteration]
    outputs: dict[str, Output]
    scores: dict[str, list[float]]
    most_nodes: int
    setup_seconds: float
    seconds: float


def redraft(
    search: GreedySearch | BeamSearch, options: SearchOptions, setting: DraftSetting
) -> GreedySearch | BeamSearch:
    """The same search with other drafts.

    Args:
        search: Left as it is.
        options: Those it was built from.
        setting: How to draft.

    Raises:
        InputError: The model cannot draft like that.
    """
    options = replace(options, **{"draft_width": None, "draft_budget": None, **setting.options()})
    changed = copy.copy(search)
    old = search.strategy
    if isinstance(search, GreedySearch):
        shape = draft_shape(options, search.decoder, width=1)
        changed.strategy = GreedyStrategy(old.scoring, old.rule, shape.width)
    else:
        shape = draft_shape(options, search.decoder, width=old.beam_size)
        changed.strategy = BeamStrategy(old.scoring, old.beam_size, shape.width)
    surrogate = search.decoder.surrogate() if shape.depth > 0 else None
    changed.drafter = RunAhead(changed.strategy, surrogate, shape)
    return changed


def run_trial(
    search: GreedySearch | BeamSearch,
    setting: DraftSetting,
    batches: Sequence[HeldOutBatch],
    limits: LengthLimits,
    nbest: int,
    clock: Clock,
) -> Trial:
    """Decode all batches with the timing on.

    Args:
        search: Drafts as ``setting`` says.
        setting: To note it.
        batches: Held-out utterances.
        limits: Of the lengths.
        nbest: Hypotheses to compare.
        clock: Tells the time.
    """
    total, iterations, outputs, scores = DecodingStatistics(), [], {}, {}
    most_nodes, setup_seconds, seconds = 0, 0.0, 0.0
    for batch in batches:
        log = PhaseLog(clock)
        started = clock.now()
        log.begin()
        walks = batch.decode(timed(search, log), limits)
        log.close()
        seconds += clock.now() - started
        setup_seconds += log.setup_seconds
        most_nodes = max(most_nodes, log.most_nodes)
        iterations += log.iterations
        for key, walk in zip(batch.keys, walks, strict=True):
            outputs[key], scores[key] = output_of(walk, nbest)
            total += walk.statistics
    total.audio_seconds = sum(batch.audio_seconds for batch in batches)
    return Trial(setting, total, iterations, outputs, scores, most_nodes, setup_seconds, seconds)


def output_of(walk: Walk, nbest: int) -> tuple[Output, list[float]]:
    """Token ids of the best hypotheses, and their scores."""
    if isinstance(walk, BeamWalk):
        ended = walk.ended[:nbest]
        return tuple(tuple(e.tokens) for e in ended), [e.score for e in ended]
    return (tuple(walk.tokens),), [walk.hypothesis.score]


def differing(trial: Trial, plain: Trial, tie: float = 0.0) -> list[str]:
    """Utterances whose n-best list is another one.

    Args:
        trial: To be looked at.
        plain: What it should have given.
        tie: Hypotheses whose scores differ by no more may have changed places.
    """
    found = []
    for key, expected in plain.outputs.items():
        got = trial.outputs[key]
        if got == expected:
            continue
        gaps = [abs(x - y) for x, y in zip(trial.scores[key], plain.scores[key], strict=False)]
        if sorted(got) != sorted(expected) or max(gaps, default=0.0) > tie:
            found.append(key)
    return found


def time_batch(search: Any, batch: HeldOutBatch, limits: LengthLimits, clock: Clock) -> float:
    """Seconds of one search over a batch, nothing in between timed."""
    started = clock.now()
    batch.decode(search, limits)
    return clock.now() - started
