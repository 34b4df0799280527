"""Find the fastest draft setting by timing, with successive halving.

1. Halving: every drafter has a group of candidates for each lookahead. All candidates decode a few
   held-out batches, and the faster half of each group decodes further ones. The last candidates
   have decoded all batches. The fastest of a group becomes a finalist.
2. Check: the finalists and the baseline decode all batches in turns. Their times decide.

The baseline takes part in every round. Successive halving: Karnin et al., ICML 2013.
"""

import math
import random
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from espnet_medusa.data.errors import InputError
from espnet_medusa.recipes.tuning.available import NO_DRAFTS, DraftSetting
from espnet_medusa.recipes.tuning.candidates import candidates
from espnet_medusa.recipes.tuning.findings import Tuning
from espnet_medusa.recipes.tuning.trial import TIE, Output, Task, Trial, run_trials

FIRST_BATCHES = 2  # minimum in the first round
LAST_CANDIDATES = 2  # minimum settings of a group in a round
CHECK_SECONDS, CHECK_ROUNDS = 60.0, 5  # upper bounds; there is at least one round


def tune(task: Task, left_out: Sequence[str] = ()) -> Tuning:
    """Find the fastest setting; ``left_out`` as in ``Available``.

    Raises InputError if a setting changes the output of an exact rule, except by rounding.
    """
    tuning = Tuning(task, [*left_out])
    groups = [group for d in task.drafters.values() for group in candidates(task, d)]
    batches = random.Random(0).sample(task.batches, len(task.batches))
    warm_up = [NO_DRAFTS, *(group[0] for group in groups)]
    trials = {setting: Trial(task.redraft(setting)) for setting in warm_up}
    run_trials(task, trials, batches[:1], "warm-up")
    started = 0
    for number, end in enumerate(round_ends(len(batches), max(map(len, groups), default=1)), 1):
        settings = [NO_DRAFTS, *(setting for group in groups for setting in group)]
        for setting in settings:
            if setting not in tuning.trials:
                tuning.trials[setting] = Trial(task.redraft(setting))
        trials = {setting: tuning.trials[setting] for setting in settings}
        run_trials(task, trials, batches[started:end], f"round {number}")
        _compare(tuning, settings)
        groups = [tuning.fastest(group, max(len(group) // 2, LAST_CANDIDATES)) for group in groups]
        started = end
    if groups:
        tuning.checked = _check(tuning, [group[0] for group in groups])
    return tuning


def round_ends(batches: int, largest_group: int) -> list[int]:
    """Return how many batches have been decoded after each round; the last round ends with all."""
    rounds = max(math.ceil(math.log2(largest_group / LAST_CANDIDATES)), 0) + 1
    ends = {max(math.ceil(batches / 2**left), FIRST_BATCHES) for left in range(rounds)}
    return sorted({min(end, batches) for end in ends})


def _compare(tuning: Tuning, settings: Sequence[DraftSetting]) -> None:
    """Record which outputs differ from the baseline's; raise InputError if one may not differ."""
    task, baseline = tuning.task, tuning.trials[NO_DRAFTS]
    for setting in settings:
        trial = tuning.trials[setting]
        keys = trial.differing(baseline, 0.0 if task.beam_size is None else TIE)
        tuning.different[setting] = keys
        if keys and task.exact and not task.rounding:
            raise InputError(
                f"{keys[0]}: with {setting} the tokens are {_brief(trial.outputs[keys[0]])}, "
                f"without drafts {_brief(baseline.outputs[keys[0]])} ({len(keys)} of "
                f"{len(trial.outputs)} utterances differ); acceptance: exact requires equal ones: "
                "this is a defect of the search, or of the arithmetic of this device"
            )


def _check(tuning: Tuning, finalists: Sequence[DraftSetting]) -> dict[DraftSetting, float]:
    """Return seconds of the finalists and the baseline: medians over rounds, without stopwatch."""
    task, settings = tuning.task, [NO_DRAFTS, *finalists]
    searches = [task.redraft(setting) for setting in settings]
    rounds = int(CHECK_SECONDS / sum(tuning.trials[setting].seconds for setting in settings))
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
    best = output[0][0] if output else ()
    return str([*best[:most], *(["..."] if len(best) > most else [])])
