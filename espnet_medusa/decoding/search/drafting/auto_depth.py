"""The depth of drafts with the most expected tokens per measured second.

A call with drafts of d steps gives 1 + a_1 + ... + a_d tokens: a_k is the share of drafts whose
first k steps are accepted (Leviathan et al., arXiv 2211.17192, eq. 1, have one acceptance rate for
all steps). The cost of a call is its seconds divided by those of a call without drafts in the same
search, so that it does not depend on what else the machine does. It depends on the number of
running utterances. Acceptance and costs are measured while searches run, and are kept in the user's
cache for the next job.
"""

from __future__ import annotations

import hashlib
import json
import logging
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.files.cache_folder import in_cache
from espnet_medusa.data.threads import lock_of
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.decoding.tree.depth_plan import DepthPlan

TRIAL_CALLS = 4  # calls of a search that try another depth; fewer with more utterances
ENOUGH, LATEST = 6, 11  # trials after which a cost is known, and latest ones that count
TRIAL_PERIOD = 32  # searches between two trials of a known cost
# Another depth replaces the chosen one if it is so many times as fast, after many trials and,
# divided by their number, more after few of them.
MARGIN, FIRST_MARGIN = 1.02, 0.1
HALF_LIFE = 200.0  # drafts after which earlier ones count half
EXPECTED, WEIGHT = 0.7, 3.0  # acceptance rate of a step before any draft, and its weight in drafts
FIRST_TRIED = 2  # depth of the first trial if the first depth is 0
FOLDER = "drafts"  # in the user's cache
COUNTS = "possible", "drafted", "accepted"

logger = logging.getLogger(__name__)


class AutoDepth:
    """Chooses depths for each number of running utterances, and learns from all searches.

    Args:
        first: Depth until other depths are measured.
        depths: Possible depths, ascending from 0.
        key: Names machine, model and search in the cache; None: nothing is cached.
    """

    def __init__(self, first: int, depths: Sequence[int], key: str | None = None):
        self.depths, self.key = depths, key
        self.first = max(depth for depth in depths if depth <= first)
        self.most = most = depths[-1]
        # Measured costs by size (see ``size_of``) and depth.
        self.costs: dict[int, dict[int, deque[float]]] = defaultdict(
            lambda: defaultdict(lambda: deque(maxlen=LATEST))
        )
        # By step: drafts that could have it, that had it, and that had it accepted.
        self.possible, self.drafted, self.accepted = ([0.0] * most for _ in range(3))
        self.chosen: dict[int, int] = {}  # depth by size
        self.searches: Counter[int] = Counter()  # by size
        if key is not None:
            self._read()

    def plan(self, utterances: int) -> DepthPlan:
        """Return the plan of a search with so many utterances."""
        with lock_of(self):
            return self._plan(utterances)

    def _plan(self, utterances: int) -> DepthPlan:
        depths = [self._depth(size_of(running)) for running in range(1, utterances + 1)]
        size = size_of(utterances)
        other = 0 if depths[-1] else self._depth_to_try(size)
        calls = max(TRIAL_CALLS >> size, min(TRIAL_CALLS, 2))
        return DepthPlan(depths, other, calls if self._is_due(size, depths[-1], other) else 0)

    def _is_due(self, size: int, now: int, other: int) -> bool:
        """Return whether to try another depth in the next search."""
        searches = self.searches[size]  # the first one of a process is slower for other reasons
        if searches % TRIAL_PERIOD == TRIAL_PERIOD - 1:
            return True
        rates = self._rates(size)
        may_be_faster = rates is None or self._margin(size) * rates[other] > rates[now]
        return searches > 0 and may_be_faster and len(self.costs[size][now or other]) < ENOUGH

    def learn(self, plan: DepthPlan, statistics: Sequence[DecodingStatistics]) -> None:
        """Record a search of this plan, whose utterances have these statistics."""
        plan.end_call()
        with lock_of(self):
            self._learn(plan, statistics)

    def _learn(self, plan: DepthPlan, statistics: Sequence[DecodingStatistics]) -> None:
        # The first draft of a search also prepares keys and values for the heads.
        prepares = plan.trial_calls > 0 and plan.trial > 0
        for size, of_depth in seconds_by_size(plan.calls[prepares:]).items():
            without = of_depth.pop(0, None)
            for depth, seconds in of_depth.items():
                if without:
                    self.costs[size][depth].append(fmean(seconds) / fmean(without))
        possible = [
            sum(running for running, depth, _ in plan.calls if depth > step)
            for step in range(self.most)
        ]
        total = sum(statistics, DecodingStatistics())
        # Steps beyond the depths that are in use are forgotten, too, so that they are tried again.
        forgotten = 0.5 ** (possible[0] / HALF_LIFE)
        all_counts = self.possible, self.drafted, self.accepted
        for counts, new in zip(all_counts, (possible, total.drafted, total.accepted), strict=True):
            for step in range(self.most):
                counts[step] = forgotten * counts[step] + (new[step] if step < len(new) else 0)
        size = size_of(len(plan.depths))
        self.searches[size] += 1
        for size in [*self.costs]:
            best = self._best(size)
            if best is not None:
                self.chosen[size] = best
        count = self.searches.total()
        if self.key is not None and count > 1 and count & (count - 1) == 0:  # 2, 4, 8, ...
            self._write()

    def tokens(self) -> list[float]:
        """Return the expected tokens of a call by depth, from 0 to ``most``."""
        tokens, reached, rate = [1.0], 1.0, EXPECTED
        for accepted, possible in zip(self.accepted, self.possible, strict=True):
            share = (accepted + WEIGHT * reached * rate) / (max(possible, accepted) + WEIGHT)
            rate, reached = share / reached, share
            tokens.append(tokens[-1] + share)
        return tokens

    def steps(self) -> list[float]:
        """Return the expected drafted steps of a call by depth, from 0 to ``most``."""
        steps, reached = [0.0], 1.0
        for drafted, possible in zip(self.drafted, self.possible, strict=True):
            reached = (drafted + WEIGHT * reached) / (max(possible, drafted) + WEIGHT)
            steps.append(steps[-1] + reached)
        return steps

    def call_costs(self, size: int) -> list[float] | None:
        """Return the cost of a call by depth; None: not enough is measured.

        Between and beyond measured depths, what drafts add is proportional to the drafted steps.
        """
        known = {depth: median(some) for depth, some in self.costs[size].items() if some}
        if not known:
            return None
        steps = self.steps()

        def estimate(depth: int) -> float:
            near = min(known, key=lambda other: abs(other - depth))
            return 1 + max(known[near] - 1, 0.0) * steps[depth] / steps[near]

        return [known.get(depth) or estimate(depth) for depth in range(self.most + 1)]

    def _rates(self, size: int) -> list[float] | None:
        """Return tokens by cost for each depth; None: not enough is measured."""
        costs = self.call_costs(size)
        if costs is None:
            return None
        return [tokens / cost for tokens, cost in zip(self.tokens(), costs, strict=True)]

    def _best(self, size: int) -> int | None:
        rates = self._rates(size)
        if rates is None:
            return None
        now = self._depth(size)
        best = max(self._within_reach(size), key=rates.__getitem__)
        return best if rates[best] > self._margin(size) * rates[now] else now

    def _within_reach(self, size: int) -> Sequence[int]:
        """Return the depths up to the next one, or twice the deepest measured one.

        Estimates far beyond it are too low where a call's seconds grow faster than its nodes.
        """
        deepest = max(depth for depth, some in self.costs[size].items() if some)
        next_one = bisect_right(self.depths, deepest) + 1
        return self.depths[: max(next_one, bisect_right(self.depths, 2 * deepest))]

    def _margin(self, size: int) -> float:
        return MARGIN + FIRST_MARGIN / sum(map(len, self.costs[size].values()))

    def _depth(self, size: int) -> int:
        """Return the depth chosen for a size, or for the nearest one that has been measured."""
        nearest = min(self.chosen, key=lambda other: abs(other - size), default=None)
        return self.first if nearest is None else self.chosen[nearest]

    def _depth_to_try(self, size: int) -> int:
        """Return a depth above 0 to measure where the chosen depth is 0."""
        rates = self._rates(size)
        if rates is None:
            return self.first or min(self.depths[1:], key=lambda depth: abs(depth - FIRST_TRIED))
        return max(self._within_reach(size)[1:], key=rates.__getitem__)

    def _read(self) -> None:
        """Read what an earlier job measured; a file that is not usable is ignored."""
        try:
            text = in_cache(FOLDER, lambda folder: read_if_there(self._path(folder)))
            found = {} if text is None else json.loads(text)
            if found.get("key") != self.key:
                return
            counts = {name: [float(count) for count in found[name]] for name in COUNTS}
            chosen = {int(size): int(depth) for size, depth in found["chosen"].items()}
            costs = [
                (int(size), int(depth), float(cost))
                for size, depths in found["costs"].items()
                for depth, some in depths.items()
                for cost in some
            ]
            used = {*chosen.values(), *(depth for _, depth, _ in costs)}
            if not used <= {*self.depths} or any(len(c) != self.most for c in counts.values()):
                raise ValueError("other depths")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError) as error:
            logger.debug(f"measured drafts are not read ({error})")
            return
        self.chosen = chosen
        for name, values in counts.items():
            setattr(self, name, values)
        for size, depth, cost in costs:
            self.costs[size][depth].append(cost)

    def _write(self) -> None:
        costs = {
            size: {depth: [*some] for depth, some in depths.items()}
            for size, depths in self.costs.items()
        }
        counts = {name: getattr(self, name) for name in COUNTS}
        found = {"key": self.key, "costs": costs, "chosen": self.chosen, **counts}

        def write(folder: Path) -> None:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(folder), json.dumps(found) + "\n")

        try:
            in_cache(FOLDER, write)
        except (OSError, InputError) as error:
            logger.debug(f"measured drafts are not kept ({error})")

    def _path(self, folder: Path) -> Path:
        return folder / (hashlib.sha256(self.key.encode()).hexdigest()[:16] + ".json")


def size_of(running: int) -> int:
    """Return the size that stands for a number of utterances: 0 for 1, 1 for 2, 2 for 3 and 4."""
    return (running - 1).bit_length()


def seconds_by_size(calls: Sequence[tuple[int, int, float]]) -> dict[int, dict[int, list[float]]]:
    """Return the seconds of calls (``DepthPlan.calls``) by size and depth."""
    found = defaultdict(lambda: defaultdict(list))
    for running, depth, seconds in calls:
        found[size_of(running)][depth].append(seconds)
    return found


def read_if_there(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
