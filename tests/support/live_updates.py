"""Live transcription of random audio, with each of its decodings repeated without drafts."""

from typing import NamedTuple

from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.longform.recording import Row
from espnet_medusa.inference.longform.window import WindowDecoding

RATE_HZ = 16000
UNGUARDED = {
    "skip_silence": False, "no_speech_threshold": None, "compression_ratio_threshold": None,
}  # fmt: skip


class Repeated(NamedTuple):
    """A decoding and its repetition without a draft, each with its counts."""

    row: Row
    drafted: tuple[WindowDecoding, DecodingStatistics]
    plain: tuple[WindowDecoding, DecodingStatistics]


def stream(live, samples, rng):
    """Add pieces of random sizes; return the updates."""
    updates, place = [], 0
    while place < len(samples):
        size = round(RATE_HZ * rng.choice([0.01, 0.3, 0.5, 0.9, 4.0]))
        live.add(samples[place : place + size])
        place += size
        if (update := live.update()) is not None:
            updates.append(update)
    return [*updates, live.finish()]


def repeat_without_drafts(live) -> list[Repeated]:
    """Let ``live`` decode each buffer also without drafts; return the list that receives both."""
    decode, repeated = live.decoder.decode, []

    def both(encoded, rows, attempt):
        found = decode(encoded, rows, attempt)
        plain = decode(encoded, [rows[0]._replace(draft=None)], attempt)
        repeated.append(Repeated(rows[0], *found, *plain))
        return found

    live.decoder.decode = both
    return repeated
