"""The `segments` table: which part of which recording an utterance is."""

import math
from dataclasses import dataclass

from espnet_medusa.errors import InputError


@dataclass(frozen=True)
class Segment:
    """A part of a recording.

    Attributes:
        recording: Key of wav.scp.
        start_s: Where it starts.
        end_s: Where it ends; -1 is the recording's end, as in Kaldi.
    """

    recording: str
    start_s: float
    end_s: float


def parse_segment(value: str) -> Segment:
    """Read `<recording> <start> <end>`.

    Raises:
        InputError: The fields are not three, no numbers, or end is not after start.
    """
    fields = value.split()
    if len(fields) != 3:
        raise InputError(f"has {len(fields) + 1} fields, not 4 (utterance recording start end)")
    try:
        start_s, end_s = float(fields[1]), float(fields[2])
    except ValueError:
        raise InputError(f"has times that are no numbers: {fields[1]} {fields[2]}") from None
    if not (math.isfinite(start_s) and math.isfinite(end_s)) or start_s < 0:
        raise InputError(f"has impossible times: {fields[1]} {fields[2]}")
    if end_s != -1 and end_s <= start_s:
        raise InputError(f"ends at {fields[2]} s, not after its start at {fields[1]} s")
    return Segment(fields[0], start_s, end_s)
