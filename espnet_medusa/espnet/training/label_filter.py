"""Drop texts of a model that are not suitable as training labels.

The filter drops empty texts, loops up to the last position, and texts whose compression ratio is
above Whisper's threshold (Radford et al., arXiv 2212.04356, section 4.5). Of the others, it drops a
share with unusual lengths, like Whisper-Medusa (arXiv 2409.15869), which drops 5 %.

This share, ``drop_fraction`` (rounded down), has the largest |r - m|, where
r = ln(characters / seconds) and m is the median of r. If values are equal, smaller ids come first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import sort_ids
from espnet_medusa.inference.longform.window import compression_ratio

EMPTY = "empty text"
ENDLESS = "loop to the last position"
REPEATING = "repeats itself"
MISFIT = "text length"


@dataclass(frozen=True)
class WrittenText:
    text: str  # with single spaces
    duration_s: float  # duration of the audio in seconds, above 0
    ended: bool = True  # whether the text ended before the decoder's last position


@dataclass(frozen=True)
class FilterOptions:
    drop_fraction: float = 0.05  # share of texts dropped for their length
    # Bytes of a text divided by its bytes after zlib; Whisper's threshold.
    max_compression_ratio: float = 2.4

    def __post_init__(self):
        if not 0 <= self.drop_fraction < 1:
            raise InputError(f"drop_fraction {self.drop_fraction}: must be 0 or more and below 1")
        if not self.max_compression_ratio > 1:
            raise InputError(f"max_compression_ratio {self.max_compression_ratio}: must be above 1")


def dropped_texts(
    written: Mapping[str, WrittenText], options: FilterOptions = FilterOptions()
) -> dict[str, str]:
    """Return the id of each dropped text and the reason; details follow a colon."""
    dropped = {key: reason for key, text in written.items() if (reason := _fault(text, options))}
    residuals = length_residuals({key: written[key] for key in written if key not in dropped})
    for key in find_misfits(residuals, options.drop_fraction):
        dropped[key] = f"{MISFIT}: {math.exp(residuals[key]):.2f} times the usual"
    return dropped


def _fault(written: WrittenText, options: FilterOptions) -> str | None:
    """Return why a text is dropped regardless of the others, or None."""
    if not written.text:
        return EMPTY
    if not written.ended:
        return ENDLESS
    ratio = compression_ratio(written.text)
    return f"{REPEATING}: {ratio:.1f}" if ratio > options.max_compression_ratio else None


def length_residuals(written: Mapping[str, WrittenText]) -> dict[str, float]:
    """Return r - m of each utterance (see the module docstring); it is positive for a long text."""
    rates = {key: math.log(len(text.text) / text.duration_s) for key, text in written.items()}
    center = median(rates.values()) if rates else 0.0
    return {key: rate - center for key, rate in rates.items()}


def find_misfits(residuals: Mapping[str, float], fraction: float) -> list[str]:
    """Return the share of ids with the largest absolute residuals, largest first."""
    # Rounded, so that equal residuals do not differ by rounding errors.
    worst = sorted(sort_ids(residuals), key=lambda key: -round(abs(residuals[key]), 9))
    # 0.57 * 100 is a little less than 57.
    return worst[: int(fraction * len(residuals) + 1e-9)]
