"""The interface of live systems, and the virtual clock that feeds them."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Said:
    """Text of an update; a new word begins with a space."""

    confirmed: str = ""  # new text, which never changes
    tentative: str | None = None  # text after all confirmed text; None: the system shows none


@dataclass(frozen=True)
class Files:
    """Weights of one model in the formats of all systems, and the other systems' programs."""

    whisper: str  # for ours: what ``Speech2Text.from_pretrained`` accepts
    ctranslate2: str = ""  # folder for faster-whisper
    openai: str = ""  # .pt file for openai-whisper
    peers: str = ""  # folder with the repositories whisper_streaming and SimulStreaming


@dataclass(frozen=True)
class Setting:
    """A system with its options: a row of the table."""

    system: str  # a key of ``settings.SYSTEMS``
    update_s: float  # least new audio of an update; infinity: all audio at once
    policy: str = ""  # how words are confirmed
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""  # search and precision

    @property
    def is_live(self) -> bool:
        return self.update_s < float("inf")

    @property
    def name(self) -> str:
        updates = f"{self.update_s:g} s" if self.is_live else ""
        return ", ".join(filter(None, [self.system, self.policy, updates, self.notes]))


class LiveSystem(ABC):
    """One system with one setting."""

    calls = 0  # steps of the search so far, of those systems that can be counted

    def __init__(self, files: Files, setting: Setting, threads: int):
        self.files, self.setting, self.threads = files, setting, threads
        self.load()

    @abstractmethod
    def load(self) -> None:
        """Load the model."""

    @abstractmethod
    def start(self) -> None:
        """Begin another stream."""

    @abstractmethod
    def update(self, samples: np.ndarray) -> Said:
        """Add new samples (N,), float32 at 16 kHz, and decode."""

    @abstractmethod
    def finish(self) -> Said:
        """Decode the rest and confirm all words."""


@dataclass(frozen=True)
class Event:
    """An update of a stream."""

    audio_s: float  # audio so far
    ready_s: float  # time of the virtual clock when the update was finished
    seconds: float  # elapsed time of computing it
    processor_s: float  # processor time of all threads
    calls: int  # steps of the search
    confirmed: str
    tentative: str | None


def run_stream(
    system: LiveSystem,
    samples: np.ndarray,
    rate_hz: int,
    elapsed: Callable[[], float] = time.perf_counter,
    processor: Callable[[], float] = time.process_time,
) -> list[Event]:
    """Feed samples (N,) to a system at their own pace, by a virtual clock.

    An update begins when ``update_s`` of new audio have arrived and the update before is finished,
    and takes all audio that has arrived. The clock then advances by the time of computing it, so
    nobody waits for audio.
    """
    total, fed, now = len(samples), 0, 0.0  # in samples
    least = round(min(system.setting.update_s * rate_hz, total))
    events = []

    def measure(action: Callable[[], Said]) -> None:
        nonlocal now
        started, used, calls = elapsed(), processor(), system.calls
        said = action()
        used, seconds = processor() - used, elapsed() - started
        now += seconds * rate_hz
        counts = seconds, used, system.calls - calls
        events.append(Event(fed / rate_hz, now / rate_hz, *counts, said.confirmed, said.tentative))

    system.start()
    while fed < total:
        now = max(now, min(fed + least, total))
        first, fed = fed, min(int(now), total)
        measure(partial(system.update, samples[first:fed]))
    measure(system.finish)
    return events
