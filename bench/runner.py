"""The runner: every ``Way`` decodes every input, in random order. Results are saved one by one."""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contestants.base import Timed
from contestants.client import Client, ContestantFailed
from contestants.plan_client import PlanClient
from contestants.ways import OURS, Way
from tqdm import tqdm

from espnet_medusa.data.errors import InputError

CALL_REPEATS = 10


@dataclass(frozen=True)
class Measurement:
    """One way on one batch of inputs, in one round."""

    way: Way
    names: tuple[str, ...]
    number: int
    timed: Timed


@dataclass
class Journal:
    """The measurements and their file; raises InputError if the file has another ``about``."""

    path: Path | None = None  # file; None: measurements are only in memory
    # Model, data, options and machine; a file with others is refused.
    about: dict[str, Any] = field(default_factory=dict)
    rows: list[Measurement] = field(default_factory=list)  # all measurements
    left_out: dict[str, str] = field(default_factory=dict)  # by contestant, why it is missing

    def __post_init__(self) -> None:
        self.keys: set[tuple] = set()
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.about = json.loads(json.dumps(self.about, default=str))
        if not self.path.is_file():
            self._write(self.about)
            return
        text = self.path.read_text(encoding="utf-8")
        if not text.endswith("\n"):
            self.path.write_text(text + "\n", encoding="utf-8")
        first, *lines = text.splitlines() or [""]
        if _read(first) != self.about:
            raise InputError(
                f"{self.path}: is of another model, data, options or machine; remove it, or give "
                "another --journal or --output"
            )
        for row in filter(None, map(_read, lines)):
            way, names, timed = Way(**row["way"]), tuple(row["names"]), Timed.read(row["timed"])
            self._append(Measurement(way, names, row["number"], timed))

    def has(self, way: Way, names: Sequence[str], number: int) -> bool:
        return (way, tuple(names), number) in self.keys

    def add(self, measurement: Measurement) -> None:
        """Add a measurement and write it to the file."""
        self._append(measurement)
        if self.path is not None:
            self._write(asdict(measurement))

    def of(self, way: Way) -> list[Measurement]:
        return [row for row in self.rows if row.way == way]

    def _append(self, measurement: Measurement) -> None:
        self.rows.append(measurement)
        self.keys.add((measurement.way, measurement.names, measurement.number))

    def _write(self, value: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(value) + "\n")


def _read(line: str) -> dict[str, Any] | None:
    """Parse a line of the journal; None: it was cut when its process ended."""
    try:
        return json.loads(line)
    except ValueError:
        return None


@dataclass
class Session:
    """Running contestants; one that fails is left out from then on."""

    connect: Callable[[Way], Client | PlanClient]  # starts the contestant of a way
    journal: Journal  # receives the measurements
    clients: dict[tuple[str, str], Client | PlanClient] = field(default_factory=dict)
    failed: set[tuple[str, str]] = field(default_factory=set)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error) -> None:
        for client in {id(client): client for client in self.clients.values()}.values():
            client.end()

    def decode(self, way: Way, names: Sequence[str]) -> Timed | None:
        """Decode inputs together; None: the contestant has failed."""
        if way.process in self.failed:
            return None
        try:
            if way.process not in self.clients:
                self.clients[way.process] = self.connect(way)
            return self.clients[way.process].decode(way, [*names])
        except (ContestantFailed, ImportError) as error:
            self.journal.left_out[", ".join(filter(None, way.process))] = str(error)
            self.failed.add(way.process)
            return None


def in_batches(names: Sequence[str], sizes: Iterable[int]) -> list[tuple[int, list[str]]]:
    """Return each batch size with each batch of neighboring inputs."""
    starts = [(size, start) for size in sizes for start in range(0, len(names), size)]
    return [(size, [*names[start : start + size]]) for size, start in starts]


def measure(
    session: Session,
    ways: Sequence[Way],
    turns: Iterable[tuple[int, list[str]]],
    rounds: int = 1,
    way_seconds: float = float("inf"),
    warm_up: bool = True,
) -> None:
    """Let every way decode every batch of its batch size, in random order for each batch.

    Args:
        turns: Batch sizes, each with the names of a batch.
        rounds: How often each batch is decoded.
        way_seconds: A way that has taken this long in total skips later rounds.
        warm_up: Whether each way decodes its first batch once without measurement.
    """
    order, journal, turns = random.Random(0), session.journal, [*turns]
    spent, warm = dict.fromkeys(ways, 0.0), set()
    todo = [
        (number, way, names)
        for number in range(rounds)
        for size, names in turns
        for way in order.sample(ways, len(ways))
        if way.batch_size == size and not journal.has(way, names, number)
    ]
    if warm_up:
        for _, way, names in todo:
            if way not in warm:
                warm.add(way)
                session.decode(way, names)
    for number, way, names in tqdm(todo, unit="batch", mininterval=2.0):
        if number and spent[way] >= way_seconds:
            continue
        timed = session.decode(way, names)
        if timed is not None:
            spent[way] += timed.seconds
            journal.add(Measurement(way, tuple(names), number, timed))


def time_calls(
    session: Session, nodes: Sequence[int], rounds: int
) -> tuple[dict[tuple[str, int], list[float]], int]:
    """Return seconds of our decoder calls by weights and nodes, and the number of frames."""
    seconds: dict[tuple[str, int], list[float]] = {}
    frames = 0
    for _ in range(rounds):
        for count in nodes:
            for (contestant, weights), client in session.clients.items():
                if contestant == OURS and (contestant, weights) not in session.failed:
                    answer = client.time_calls(count, CALL_REPEATS)
                    seconds.setdefault((weights, count), []).extend(answer["seconds"])
                    frames = answer["frames"]
    return seconds, frames


def peak_memory(
    connect: Callable[[Way], Client], ways: Iterable[Way], name: str, left_out: dict[str, str]
) -> dict[Way, dict[str, int]]:
    """Return the peak memory of each way that decodes one input in a process of its own."""
    memory = {}
    for way in tqdm([*ways], unit="process"):
        try:
            client = connect(way)
            client.decode(way, [name])
            memory[way] = client.stop()
        except (ContestantFailed, ImportError) as error:
            left_out[f"memory of {way.label}, {way.weights}"] = str(error)
    return memory
