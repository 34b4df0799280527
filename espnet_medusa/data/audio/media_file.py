"""Audio files that libsndfile does not read, also video: decoded by FFmpeg through PyAV."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from espnet_medusa.data.audio.frame_converter import FrameConverter
from espnet_medusa.data.audio.reading import STRICT, AudioReading, Damage
from espnet_medusa.data.audio.source import AudioError, AudioInfo, AudioSource, DamagedError
from espnet_medusa.data.audio.time_line import TimeLine

if TYPE_CHECKING:
    import av

# Containers that FFmpeg recognizes by content (a few by suffix) and reads without other files.
# Excluded: playlists and protocols (concat, dash, hls, imf, rtsp, sdp, ...), devices, sequences of
# images, text, and raw samples, which accept any content (so do G.722 and GSM, but by suffix only).
TIMED = (
    "adx", "aiff", "ape", "asf", "ast", "au", "avi", "caf", "dsf", "dss", "dv", "flac", "flv",
    "gxf", "iamf", "iff", "ircam", "live_flv", "matroska", "mmf", "mov", "mpc", "mpc8", "mpeg",
    "mpegts", "mxf", "nsv", "nut", "nuv", "ogg", "oma", "osq", "qcp", "qoa", "rm",
    "rso", "sox", "swf", "tak", "tta", "voc", "w64", "wav", "wtv", "wv", "wve", "xwma",
)  # fmt: skip
# Formats without a length or times in their header; FFmpeg estimates them.
UNTIMED = (
    "aac", "ac3", "amr", "amrnb", "amrwb", "dts", "dtshd", "eac3", "g722", "gsm", "ilbc", "loas",
    "mlp", "mp3", "sbc", "shn", "spdif", "truehd",
)  # fmt: skip
FORMATS = ",".join((*TIMED, *UNTIMED))
# Their header has the end of the last packet, instead of a duration.
END_IN_HEADER = ("matroska,webm", "nut", "ogg")
JOINED = ("mpeg", "mpegts")  # broadcast streams, whose times may begin anew
# FFmpeg looks for streams in the first seconds; sound may begin later.
WHOLE_FILE = {"probesize": str(1 << 30), "analyzeduration": str(1 << 50)}
# Headers round the duration, and encoders count their padding in different ways.
TOLERANCE_S = 0.5
MOST_FAILURES = 100  # of reading packets, before the rest of a damaged file is given up

logger = logging.getLogger(__name__)


class MediaError(Exception):
    """FFmpeg's reason for not reading a file."""


class MediaFile(AbstractContextManager):
    """An audio stream of a file, by default the one that players choose.

    ``untimed``: the file has one of these formats, and its header has no or a wrong length.
    ``damage``: collects parts that cannot be decoded; None: they raise. Raise MediaError if FFmpeg
    does not read it, AudioError without a stream of a known codec.
    """

    def __init__(
        self,
        source: AudioSource,
        untimed: str | None = None,
        reading: AudioReading = STRICT,
        damage: Damage | None = None,
    ):
        self.source, self.name, self.damage = source, source.name, damage
        self.track = reading.audio_track
        self.container = self._open(untimed or FORMATS)
        if self._best is None:
            self.__exit__()
            self.container = self._open(untimed or FORMATS, **WHOLE_FILE)
        self.untimed = untimed is not None or self.container.format.name in UNTIMED
        self.on_time = reading.player_times and not self.untimed
        audio = self._best
        if audio is None:
            self.__exit__()
            problem = f"{source.name}: has no audio that FFmpeg decodes"
            raise AudioError(problem, "give a file with sound, or remove it")
        count = len(self.container.streams.audio)
        if self.track is not None and self.track > count:
            self.__exit__()
            allowed = "1, its only one" if count == 1 else f"1 to {count}"
            problem = f"{source.name}: audio_track: {self.track}; allowed: {allowed}"
            raise AudioError(problem, "choose another")
        self.audio: av.AudioStream = audio

    def _open(self, formats: str, **options: str) -> av.container.InputContainer:
        import av  # slow to import

        self.stream = self.source.open()
        # PyAV 19 ignores errors in metadata and has no such option.
        major_version = int(av.__version__.split(".")[0])
        lenient = {"metadata_errors": "ignore"} if major_version < 19 else {}
        # No container may open another file or address.
        options |= {"format_whitelist": formats, "protocol_whitelist": "none"}
        try:
            return av.open(self.stream, options=options, **lenient)
        except (av.FFmpegError, ValueError, LookupError) as error:
            self.stream.close()
            raise MediaError(getattr(error, "strerror", None) or str(error)) from error

    @property
    def _best(self) -> av.AudioStream | None:
        """The chosen stream, or the one that players choose, if its codec is known."""
        audio, tracks = self.container.streams.best("audio"), self.container.streams.audio
        if self.track is not None and self.track <= len(tracks):
            audio = tracks[self.track - 1]
        known = audio is not None and audio.codec_context is not None and audio.codec_context.rate
        return audio if known else None

    @property
    def tracks(self) -> str | None:
        """Describe the choice among several streams; None: there is one."""
        streams = self.container.streams.audio
        if len(streams) < 2:
            return None
        names = [f"{number} ({_describe(one)})" for number, one in enumerate(streams, start=1)]
        chosen = [one.index for one in streams].index(self.audio.index)
        others = ", ".join(names[:chosen] + names[chosen + 1 :])
        return f"audio track {names[chosen]} is decoded; others (audio_track): {others}"

    def __exit__(self, *_: object) -> None:
        self.container.close()
        self.stream.close()

    @property
    def info(self) -> AudioInfo:
        """The header; its length may be inexact."""
        codec, duration_s = self.audio.codec_context, self._duration_s
        if self.audio.duration is not None and duration_s is not None:
            duration_s = self._without_start(float(self.audio.duration * self.audio.time_base))
            if self.on_time and self.audio.start_time is not None:
                start_s = float(self.audio.start_time * self.audio.time_base)
                duration_s += max(0.0, start_s - self._start_s)
        n_samples = None if duration_s is None else round(duration_s * codec.rate)
        container = self.container.format.name
        return AudioInfo(codec.rate, codec.channels, n_samples, container, codec.name)

    @property
    def _start_s(self) -> float:
        """Timestamp at which the first stream begins."""
        return (self.container.start_time or 0) / 1e6

    @property
    def _duration_s(self) -> float | None:
        """Duration of the longest stream."""
        if self.container.duration is None or self.untimed:
            return None
        return self._without_start(self.container.duration / 1e6)

    def _without_start(self, end_s: float) -> float:
        is_end = self.container.format.name in END_IN_HEADER and end_s > self._start_s
        return end_s - max(0.0, self._start_s) if is_end else end_s

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

        convert, reached_s = FrameConverter(self.audio.codec_context.rate), 0.0
        line = TimeLine(
            self._start_s,
            convert.rate_hz,
            self.source.size_bytes,
            self.container.format.name in JOINED,
        )
        try:
            for packet in self._packets():
                start = packet.dts if packet.pts is None else packet.pts
                if start is not None:
                    unit_s = float(packet.time_base)
                    reached_s = max(reached_s, (start + (packet.duration or 0)) * unit_s)
                    line.follow(start * unit_s)
                if packet.stream.index != self.audio.index:
                    continue
                for frame in self._frames(packet, line):
                    for block in convert(frame, self._silence(frame, line)):
                        line.position += len(block)
                        yield block
            yield from convert.flush()
        except (av.FFmpegError, ValueError, LookupError) as error:  # e.g. a stream appears late
            raise MediaError(getattr(error, "strerror", None) or str(error)) from error
        if line.unfilled_s:
            gap = f"a gap of {line.unfilled_s:.0f} s in its times, too long for its size"
            logger.warning(f"{self.name}: has {gap}; later times are not a player's")
        self._check_end(reached_s - self._start_s)

    def _packets(self) -> Iterator[av.Packet]:
        """Read packets; with ``damage``, go on after errors of the container."""
        import av

        for _ in range(MOST_FAILURES):
            try:
                yield from self.container.demux()
                return
            except av.FFmpegError as error:
                if self.damage is None:
                    raise
                reason = error.strerror
        self.damage.stop = reason

    def _silence(self, frame: av.AudioFrame, line: TimeLine) -> int:
        """Return the number of zeros before a frame, in place of lost packets or for a gap."""
        silence, line.lost = line.lost, 0
        if self.on_time and frame.pts is not None:
            silence = max(silence, line.silence_before(frame.pts * float(frame.time_base)))
        if silence and line.position and self.damage is not None:
            self.damage.add(line.position / line.rate_hz, silence / line.rate_hz)
            self.damage.filled_s += silence / line.rate_hz
        return silence

    def _frames(self, packet: av.Packet, line: TimeLine) -> list[av.AudioFrame]:
        """Decode a packet; with ``damage``, record one that cannot be decoded."""
        import av

        try:
            return packet.decode()
        except av.FFmpegError:
            if self.damage is None:
                raise
            length_s = float((packet.duration or 0) * packet.time_base)
            self.damage.add((line.position + line.lost) / line.rate_hz, length_s)
            line.lost += round(length_s * line.rate_hz)
            return []

    def _check_end(self, reached_s: float) -> None:
        """Compare the end of the last packet with the duration in the header."""
        duration_s = self._duration_s
        if duration_s is None or reached_s >= duration_s - TOLERANCE_S:
            return
        reason = f"{self.name}: is truncated ({reached_s:.2f} of {duration_s:.2f} s)"
        if self.damage is None:
            raise DamagedError(reason, duration_s)


def _describe(stream: av.AudioStream) -> str:
    """Return title or language, codec and channels of a stream."""
    codec, tags = stream.codec_context, stream.metadata
    known = [tags.get("language"), tags.get("title")]
    if codec is not None:
        known += [codec.name, f"{codec.channels} channel{'s' * (codec.channels > 1)}"]
    return ", ".join(" ".join(one.split()) for one in known if one and one != "und")
