"""How audio files are read: damaged ones, and the times of media files."""

from dataclasses import dataclass

from espnet_medusa.data.errors import list_some
from espnet_medusa.data.options import check_at_least, check_choice, option

DECODE, REFUSE = "decode", "refuse"
ON_BAD_AUDIO = (DECODE, REFUSE)
SHOWN_PLACES = 5
LEAST_S = 0.01  # headers round their duration
GROUP = "Audio files"


@dataclass(frozen=True)
class AudioReading:
    on_bad_audio: str = option(
        REFUSE,
        "damaged or truncated audio: decode what is there, with a warning that has place and "
        "length of the loss (default of espnet-medusa-transcribe); or refuse the file",
        group=GROUP,
    )
    player_times: bool = option(
        True,
        "times are those of a player: silence where a media file has no audio, also before its "
        "first sound; false: as if its audio began at 0 and had no gaps",
        group=GROUP,
    )

    audio_track: int | None = option(
        None,
        "number of the audio track of a file with several, from 1; none: the one that players "
        "choose",
        group=GROUP,
    )

    def __post_init__(self) -> None:
        if self.audio_track is not None:
            check_at_least(self.audio_track, 1, "audio_track")
        check_choice(self.on_bad_audio, ON_BAD_AUDIO, "on_bad_audio")


STRICT = AudioReading()  # of recipes
TRANSCRIBING = AudioReading(DECODE)


class Damage:
    """The parts of a damaged file that are not decoded."""

    def __init__(self) -> None:
        self.places: list[tuple[float, float]] = []  # start and end in s
        self.filled_s = 0.0  # of them, with silence
        self.stop: str | None = None  # the error after which nothing was decoded

    def add(self, start_s: float, length_s: float) -> None:
        """Add a part; one that follows the previous one extends it."""
        end_s = start_s + length_s
        if self.places and start_s <= self.places[-1][1] + 1e-3:
            start_s, end_s = self.places[-1][0], max(self.places.pop()[1], end_s)
        self.places.append((start_s, end_s))

    @property
    def lost_s(self) -> float:
        return sum(end_s - start_s for start_s, end_s in self.places)

    def describe(self, length_s: float, missing_s: float) -> str:
        """Describe the losses; ``missing_s``: how much the header declares after the end."""
        parts = [f"{_ms(end_s - start_s)} at {start_s:.2f} s" for start_s, end_s in self.places]
        found = [f"{list_some(parts, SHOWN_PLACES)} could not be decoded"] if parts else []
        if missing_s >= LEAST_S:
            found.append(f"it ends at {length_s:.2f} s, {_ms(missing_s)} before its declared end")
        elif self.stop is not None:
            found.append(f"nothing after {length_s:.2f} s could be decoded ({self.stop})")
        return "; ".join(found) or "its decoder reports errors, but nothing is missing"


def _ms(seconds: float) -> str:
    return f"{max(1, round(1000 * seconds))} ms"
