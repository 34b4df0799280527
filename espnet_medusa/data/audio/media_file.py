"""Audio files that libsndfile does not read, also video: decoded by FFmpeg through PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from espnet_medusa.data.audio.source import COPY_AGAIN, AudioError, AudioInfo, AudioSource

if TYPE_CHECKING:
    import av

# Others are excluded: some accept any text file, and playlists make FFmpeg open other files.
FORMATS = "aac,ac3,amr,ape,asf,avi,caf,flv,matroska,mov,mpeg,mpegts,ogg,tta,wv"
# Formats without a length in their header; FFmpeg estimates it.
UNTIMED = ("aac", "amr")
# Headers round the duration, and encoders count their padding in different ways.
TOLERANCE_S = 0.5


class MediaError(Exception):
    """FFmpeg's reason for not reading a file."""


class MediaFile(AbstractContextManager):
    """The default audio stream of a file.

    ``untimed``: the file has one of these formats, and its header has no or a wrong length. Raise
    MediaError if FFmpeg does not read it, AudioError without a stream of a known codec.
    """

    def __init__(self, source: AudioSource, untimed: str | None = None):
        import av  # slow to import

        self.name, self.stream, self.untimed = source.name, source.open(), untimed is not None
        # PyAV 19 ignores errors in metadata and has no such option.
        major_version = int(av.__version__.split(".")[0])
        lenient = {"metadata_errors": "ignore"} if major_version < 19 else {}
        options = {"format_whitelist": untimed or FORMATS}
        try:
            self.container = av.open(self.stream, options=options, **lenient)
        except (av.FFmpegError, ValueError, LookupError) as error:
            self.stream.close()
            raise MediaError(getattr(error, "strerror", None) or str(error)) from error
        audio = self.container.streams.best("audio")
        if audio is None or audio.codec_context is None or not audio.codec_context.rate:
            self.__exit__()
            problem = f"{source.name}: has no audio that FFmpeg decodes"
            raise AudioError(problem, "give a file with sound, or remove it")
        self.audio: av.AudioStream = audio

    def __exit__(self, *_: object) -> None:
        self.container.close()
        self.stream.close()

    @property
    def info(self) -> AudioInfo:
        """The header; its length may be inexact."""
        codec, duration_s = self.audio.codec_context, self._duration_s
        if self.audio.duration is not None and duration_s is not None:
            duration_s = float(self.audio.duration * self.audio.time_base)
        n_samples = None if duration_s is None else round(duration_s * codec.rate)
        container = self.container.format.name
        return AudioInfo(codec.rate, codec.channels, n_samples, container, codec.name)

    @property
    def _duration_s(self) -> float | None:
        """Duration of the longest stream."""
        untimed = self.untimed or self.container.format.name in UNTIMED
        if self.container.duration is None or untimed:
            return None
        return self.container.duration / 1e6

    def blocks(self, start: int, end: int | None) -> Iterator[np.ndarray]:
        """Decode float32 (n, channels) from sample ``start`` up to ``end``, or to the file's end.

        Decodes from the beginning: seeking would not be exact to the sample. Raise MediaError if
        the file is corrupt, AudioError if it ends before the duration in its header.
        """
        position = 0
        for block in self._decode():
            first, position = position, position + len(block)
            last = position if end is None else min(position, end)
            if last > max(first, start):
                yield block[max(start - first, 0) : last - first]
            if end is not None and position >= end:
                return

    def _decode(self) -> Iterator[np.ndarray]:
        import av

        # Not planar: for 8 channels and more PyAV counts planes that do not exist.
        resampler, reached_s = av.AudioResampler(format="flt"), 0.0
        try:
            for packet in self.container.demux():
                start = packet.dts if packet.pts is None else packet.pts
                if start is not None:
                    end = (start + (packet.duration or 0)) * packet.time_base
                    reached_s = max(reached_s, float(end))
                if packet.stream.index != self.audio.index:
                    continue
                for frame in packet.decode():
                    frame.pts = None  # do not fill gaps
                    yield from map(_samples, resampler.resample(frame))
            yield from map(_samples, resampler.resample(None))
        except (av.FFmpegError, ValueError, LookupError) as error:  # e.g. a stream appears late
            raise MediaError(getattr(error, "strerror", None) or str(error)) from error
        reached_s -= (self.container.start_time or 0) / 1e6
        duration_s = self._duration_s
        if duration_s is not None and reached_s < duration_s - TOLERANCE_S:
            raise AudioError(
                f"{self.name}: is truncated ({reached_s:.2f} of {duration_s:.2f} s)", COPY_AGAIN
            )


def _samples(frame: av.AudioFrame) -> np.ndarray:
    """Convert an interleaved frame to (samples, channels)."""
    return frame.to_ndarray().reshape(-1, frame.layout.nb_channels)
