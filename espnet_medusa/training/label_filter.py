"""Which texts that a model wrote itself cannot be right, and are not learned.

Left out are empty texts, loops to the decoder's last position, loops that ended (gzip's ratio, as
Whisper's own decoding judges them: Radford et al., arXiv 2212.04356, 4.5), and of what is left the
share whose length least fits the audio (Whisper-Medusa, arXiv 2409.15869, leaves out 5%).

The fit: r = ln(characters / seconds), its median m over all that are left, and |r - m|: the same
for a text twice too long as for one half too short. The median is not moved by the texts that are
to be found. The drop_fraction (rounded down: of fewer than 20 utterances 5% is none) with the
largest |r - m| goes; of equal ones that with the smaller id.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.table import sort_ids

EMPTY = "empty text"
ENDLESS = "loop to the last position"
REPEATING = "repeats itself"
MISFIT = "text length"


@dataclass(frozen=True)
class WrittenText:
    """What a model heard in an utterance.

    Attributes:
        text: With single spaces.
        duration_s: Of the audio, in seconds, above 0.
        ended: Whether the text ended before the decoder's last position.
    """

    text: str
    duration_s: float
    ended: bool = True


@dataclass(frozen=True)
class UnfitOptions:
    """What is left out.

    Attributes:
        drop_fraction: Share that goes for the length of its text.
        max_compression_ratio: Bytes of a text over those that zlib makes of them; with more it
            repeats itself. Whisper's own threshold.
    """

    drop_fraction: float = 0.05
    max_compression_ratio: float = 2.4

    def __post_init__(self):
        if not 0 <= self.drop_fraction < 1:
            raise InputError(f"drop_fraction {self.drop_fraction}: must be 0 or more and below 1")
        if not self.max_compression_ratio > 1:
            raise InputError(f"max_compression_ratio {self.max_compression_ratio}: must be above 1")


def unfit_texts(
    written: Mapping[str, WrittenText], options: UnfitOptions | None = None
) -> dict[str, str]:
    """Choose what is not learned.

    Args:
        written: By utterance id.
        options: How much to leave out.

    Returns:
        Id to reason of what goes; what follows a colon is detail.
    """
    options = options or UnfitOptions()
    unfit = {key: reason for key, text in written.items() if (reason := _fault(text, options))}
    fit = length_residuals({key: text for key, text in written.items() if key not in unfit})
    for key in find_misfits(fit, options.drop_fraction):
        unfit[key] = f"{MISFIT}: {math.exp(fit[key]):.2f} times the usual"
    return unfit


def _fault(written: WrittenText, options: UnfitOptions) -> str | None:
    """What is wrong with a text, whatever the others are."""
    if not written.text:
        return EMPTY
    if not written.ended:
        return ENDLESS
    ratio = compression_ratio(written.text)
    return f"{REPEATING}: {ratio:.1f}" if ratio > options.max_compression_ratio else None


def compression_ratio(text: str) -> float:
    """Bytes of a text over those that zlib makes of them."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))


def length_residuals(written: Mapping[str, WrittenText]) -> dict[str, float]:
    """Give r - m of each utterance (see the module); positive: its text is long."""
    rates = {key: math.log(len(one.text) / one.duration_s) for key, one in written.items()}
    centre = median(rates.values()) if rates else 0.0
    return {key: rate - centre for key, rate in rates.items()}


def find_misfits(residuals: Mapping[str, float], fraction: float) -> list[str]:
    """Choose the share of ids with the largest absolute residuals; of equal ones smaller ids."""
    # Sums in another order must not decide between texts that fit equally well.
    worst = sorted(sort_ids(residuals), key=lambda key: -round(abs(residuals[key]), 9))
    # 0.57 * 100 is a little less than 57.
    return worst[: int(fraction * len(residuals) + 1e-9)]
