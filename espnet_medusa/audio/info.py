"""What the header of an audio file says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AudioInfo:
    """What the header says.

    Attributes:
        rate_hz: Sample rate.
        n_channels: Channels.
        n_samples: Samples of one channel; None if the header does not say.
        format_name: libsndfile's name of the container, such as "FLAC", or FFmpeg's.
        subtype: libsndfile's name of the encoding, such as "PCM_16", or FFmpeg's of the codec.
    """

    rate_hz: int
    n_channels: int
    n_samples: int | None
    format_name: str
    subtype: str

    @property
    def duration_s(self) -> float | None:
        """Duration in seconds; None if the header does not say."""
        return None if self.n_samples is None else self.n_samples / self.rate_hz
