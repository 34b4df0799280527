"""Who is asked what, in which order."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tqdm import tqdm

from peers.client import Client, ContestantFailed
from peers.contestant import BFLOAT16, CONTESTANTS, Setup
from peers.make_subject import convert_to_ctranslate2
from peers.subject import Subject
from peers.way import CTC, CTC_HEADS, DRAFTERS, DRAFTS, HEADS, MODEL, REPLAYED, Way

OURS = "ours"
NO_DRAFT = "no draft model; train EXP_DIR/asr_draft (bench/compare.py says how)"
NO_RANDOM_DRAFT = "its acceptance with random weights means nothing and is not replayed"
NO_BATCH = "decodes one input at a time"
NO_CTC = "the model has no CTC branch (model_conf.ctc_weight: 0)"
NO_HEADS = "the model has no heads; --heads names one that has"
NO_DRAFTER = {HEADS: NO_HEADS, CTC: NO_CTC, CTC_HEADS: "needs both of them", MODEL: NO_DRAFT}
CALL_REPEATS = 10


@dataclass(frozen=True)
class Plan:
    """What shall be measured.

    Attributes:
        setup: Where contestants run.
        contestants: Their names.
        weights: Types; None: each contestant's.
        searches: ``way.GREEDY``, ``way.BEAM5``.
        batch_sizes: Inputs together.
        rounds: How often each input is decoded in each way.
        way_seconds: A way that took as long is left out of later rounds.
        nodes: Per decoder call of ours, to be timed.
        with_memory: Whether peaks of memory are measured.
        tokens_per_call: Acceptances to replay where drafts are replayed.
        drafters: Who drafts for ours on a trained model.
    """

    setup: Setup
    contestants: list[str]
    weights: list[str] | None
    searches: list[str]
    batch_sizes: list[int]
    rounds: int
    way_seconds: float
    nodes: list[int]
    with_memory: bool
    tokens_per_call: list[float]
    drafters: Sequence[str] = DRAFTERS


@dataclass(frozen=True)
class Measurement:
    """One way on one batch of inputs, once.

    Attributes:
        way: How it was decoded.
        names: The inputs.
        encoder_seconds: 0 where inputs are memories.
        decoder_seconds: Memory to tokens.
        tokens: Of each input.
        calls: Decoder calls, where they are counted.
        nodes: Tokens they evaluated.
        tokens_per_call: Calls by the number of tokens that they wrote.
        excluded_seconds: Of the measurement itself, not part of ``decoder_seconds``.
    """

    way: Way
    names: tuple[str, ...]
    encoder_seconds: float
    decoder_seconds: float
    tokens: list[list[int]]
    calls: int | None
    nodes: int | None
    tokens_per_call: dict[str, int] | None
    excluded_seconds: float

    @property
    def seconds(self) -> float:
        """Input to tokens."""
        return self.encoder_seconds + self.decoder_seconds


@dataclass
class Comparison:
    """What was measured on one subject.

    Attributes:
        ways: All that were asked for, in the order of tables.
        rows: All measurements.
        left_out: Why a contestant or a way is not there.
        calls: Seconds of ours' decoder calls by weights and nodes.
        frames: Of the memory in those calls.
        memory: Bytes by way: the peak, and what the process held before its contestant.
    """

    ways: list[Way] = field(default_factory=list)
    rows: list[Measurement] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    calls: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    frames: int = 0
    memory: dict[Way, dict[str, int]] = field(default_factory=dict)


def compare(subject: Subject, plan: Plan) -> Comparison:
    """Measure all ways on a subject."""
    comparison = Comparison()
    ways = comparison.ways = make_ways(subject, plan, comparison.left_out)
    clients = start_clients(subject, ways, plan.setup, comparison.left_out)
    try:
        _measure(subject, plan, ways, clients, comparison)
        _time_calls(plan, clients, comparison)
    finally:
        for client in clients.values():
            client.end()
    if plan.with_memory:
        _measure_memory(subject, plan, comparison)
    return comparison


def make_ways(subject: Subject, plan: Plan, left_out: dict[str, str]) -> list[Way]:
    """All ways of decoding the subject; why others are not among them goes to ``left_out``."""
    ways = []
    for name in plan.contestants:
        entry = CONTESTANTS[name]
        if name == "transformers assisted" and subject.draft_conf is None:
            left_out[name] = NO_RANDOM_DRAFT if subject.fixed_tokens else NO_DRAFT
            continue
        offered = entry.weights if plan.setup.device == "cpu" else entry.cuda_weights
        for search in (search for search in plan.searches if search in entry.searches):
            if search not in entry.batched:
                left_out[f"{name}, {search}, batches"] = NO_BATCH
            for batch_size in plan.batch_sizes:
                if batch_size > 1 and search not in entry.batched:
                    continue
                for weights in (one for one in offered if one in (plan.weights or offered)):
                    way = Way(name, weights, search, batch_size)
                    ways += [way, *(_drafted(way, subject, plan) if entry.drafts else ())]
        if entry.drafts and subject.fixed_tokens is None:
            missing = [one for one in plan.drafters if one not in subject.drafters]
            left_out |= {f"{name}, {DRAFTS[one]}": NO_DRAFTER[one] for one in missing}
    return ways


def _drafted(way: Way, subject: Subject, plan: Plan) -> list[Way]:
    names = way.contestant, way.weights, way.search, way.batch_size
    if subject.fixed_tokens is None:
        asked = [drafter for drafter in subject.drafters if drafter in plan.drafters]
        if way.weights == BFLOAT16 and not plan.weights:
            asked = [drafter for drafter in asked if drafter == HEADS]  # tables are long
        return [Way(*names, drafter) for drafter in asked]
    stated = [*plan.tokens_per_call] if way.batch_size == 1 else []
    if way.search in (plan.setup.acceptance or {}):
        stated.insert(0, 0.0)
    return [Way(*names, REPLAYED, one) for one in stated]


def start_clients(
    subject: Subject, ways: Iterable[Way], setup: Setup, left_out: dict[str, str]
) -> dict[tuple[str, str], Client]:
    """A process for each contestant and type of weights; those that cannot run are left out."""
    clients: dict[tuple[str, str], Client] = {}
    for contestant, weights in dict.fromkeys(way.process for way in ways):
        try:
            if contestant == "ctranslate2":
                convert_to_ctranslate2(subject, weights)
            clients[contestant, weights] = Client(subject.folder, contestant, weights, setup)
        except (ContestantFailed, ImportError) as error:
            left_out[f"{contestant}, {weights}"] = str(error)
    return clients


def _measure(
    subject: Subject,
    plan: Plan,
    ways: list[Way],
    clients: dict[tuple[str, str], Client],
    comparison: Comparison,
) -> None:
    """Rounds over all inputs; on each, the ways take turns in an order of chance."""
    order = random.Random(0)
    ways = [way for way in ways if way.process in clients]
    failed: set[Way] = set()

    def ask(way: Way, names: list[str]) -> None:
        try:
            found = clients[way.process].decode(way, names)
        except ContestantFailed as error:
            failed.update(other for other in ways if other.process == way.process)
            comparison.left_out[f"{way.label}, {way.weights}, {way.search}"] = str(error)
        else:
            comparison.rows.append(Measurement(way, tuple(names), **found))

    for way in ways:
        if way not in failed:
            ask(way, subject.inputs[: way.batch_size])
    comparison.rows.clear()  # those were warming up
    turns = [*batches(subject.inputs, plan.batch_sizes)] * plan.rounds
    spent = dict.fromkeys(ways, 0.0)
    first = len(turns) // plan.rounds
    for index, (size, names) in enumerate(tqdm(turns, unit="batch", mininterval=2.0)):
        asked = [way for way in ways if way.batch_size == size and way not in failed]
        for way in order.sample(asked, len(asked)):
            if index < first or spent[way] < plan.way_seconds:
                known = len(comparison.rows)
                ask(way, names)
                spent[way] += sum(row.seconds for row in comparison.rows[known:])


def batches(inputs: list[str], sizes: Iterable[int]) -> Iterator[tuple[int, list[str]]]:
    """Inputs in batches of each size; neighbours, which are about as long, go together."""
    for size in sizes:
        for start in range(0, len(inputs), size):
            yield size, inputs[start : start + size]


def _time_calls(plan: Plan, clients: dict[tuple[str, str], Client], comparison: Comparison) -> None:
    ours = {weights: client for (name, weights), client in clients.items() if name == OURS}
    for _ in range(plan.rounds):
        for nodes in plan.nodes:
            for weights, client in ours.items():
                if client.alive:
                    found = client.time_calls(nodes, CALL_REPEATS)
                    seconds = comparison.calls.setdefault((weights, nodes), [])
                    seconds.extend(found["seconds"])
                    comparison.frames = found["frames"]


def _measure_memory(subject: Subject, plan: Plan, comparison: Comparison) -> None:
    """Each way alone in a process of its own, on one input."""
    ways = [row.way for row in comparison.rows if row.way.batch_size == 1]
    for way in tqdm(dict.fromkeys(ways), unit="process"):
        if way.drafts == REPLAYED and way.tokens_per_call:
            continue  # the same work as with the measured counts
        # A replay holds what it replays; the drafts as they are need the same memory else.
        asked = replace(way, drafts=HEADS) if way.drafts == REPLAYED else way
        try:
            client = Client(subject.folder, *way.process, plan.setup)
            client.decode(asked, subject.inputs[: way.batch_size])
            comparison.memory[way] = client.stop()
        except ContestantFailed as error:
            comparison.left_out[f"memory of {way.label}, {way.weights}"] = str(error)
