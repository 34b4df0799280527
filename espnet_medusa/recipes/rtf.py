"""Real-time factor from inference logs, as ESPnet's calculate_rtf computes it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

_START = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}).* INFO: speech length: (\d+)")
_END = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}).* INFO: best hypo")
_TIME = "%Y-%m-%d %H:%M:%S,%f"


@dataclass(frozen=True)
class Timing:
    """Samples of an utterance, and its decoding time in seconds; None if decoding failed."""

    samples: int
    seconds: float | None = None


def read_timings(log: Path) -> list[Timing]:
    """Pair each `speech length: N` line with the next `best hypo` line; failures have none."""
    timings, start = [], None
    for line in log.read_text(encoding="utf-8", errors="replace").split("\n"):
        if match := _START.search(line):
            start = datetime.strptime(match[1], _TIME)
            timings.append(Timing(int(match[2])))
        elif (match := _END.search(line)) and start is not None:
            passed = datetime.strptime(match[1], _TIME) - start
            timings[-1] = replace(timings[-1], seconds=passed.total_seconds())
            start = None
    return timings


def calculate_rtf(logs: Iterable[Path], sample_rate: float) -> str:
    """Return the lines that ESPnet's calculate_rtf prints; raise ValueError without utterances.

    ``sample_rate`` is in Hz. Each utterance is logged with its share of its batch's time.
    """
    decoded = [one for log in logs for one in read_timings(log) if one.seconds is not None]
    audio_s = sum(timing.samples for timing in decoded) / sample_rate
    if not audio_s:
        raise ValueError("no `speech length` and `best hypo` lines in the logs: nothing decoded")
    decoding_s = sum(timing.seconds for timing in decoded)
    return (
        f"Total audio duration: {audio_s:.3f} [sec]\n"
        f"Total decoding time: {decoding_s:.3f} [sec]\n"
        f"RTF: {decoding_s / audio_s:.3f}\n"
        f"Latency: {decoding_s * 1000.0 / len(decoded):.3f} [ms/sentence]"
    )
