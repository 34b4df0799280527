"""Sources of live audio: a file at its own pace, a pipe, a microphone. All yield pieces at 16 kHz.

A source ends when ``stopped`` is set; the audio that has come until then is still yielded.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import soxr

from espnet_medusa.data.audio.downmix import CANCELLED
from espnet_medusa.data.audio.frame_converter import FrameConverter
from espnet_medusa.data.audio.media_file import FORMATS
from espnet_medusa.data.audio.source import AudioError
from espnet_medusa.data.audio.voice_activity import RATE_HZ
from espnet_medusa.data.errors import InputError

if TYPE_CHECKING:
    import av

PIECE = RATE_HZ // 10  # samples of a piece of a file or a pipe
WAITING = 6000  # pieces of a pipe that wait while the decoder is late, before the pipe waits
WAIT_S = 0.1
HEAD = 188 * 2 + 1  # bytes that show the container
# FFmpeg reads little before the first samples.
QUICK = {"probesize": "65536", "analyzeduration": "500000"}
HOW_TO_PIPE = "pipe 16-bit PCM at 16 kHz: ffmpeg -i INPUT -ac 1 -ar 16000 -f s16le -"
Pieces = Iterator[np.ndarray]


def paced(samples: np.ndarray, pace: float, stopped: threading.Event) -> Pieces:
    """Yield samples at ``pace`` times the speed of speech; 0: without waiting.

    A caller that is late gets all samples since the last piece.
    """
    started, place = time.monotonic(), 0
    while place < len(samples) and not stopped.is_set():
        end = place + PIECE
        if pace:
            due = round((time.monotonic() - started) * pace * RATE_HZ)
            if due < min(end, len(samples)):
                stopped.wait((end - due) / pace / RATE_HZ)
                continue
            end = due
        yield samples[place:end]
        place = end


def piped(stream: BinaryIO, stopped: threading.Event) -> Pieces:
    """Yield the audio of a pipe: a container that FFmpeg reads, or else 16-bit PCM at 16 kHz."""
    return in_thread(lambda: _decode_pipe(stream), stopped)


def recorded(stopped: threading.Event) -> Pieces:
    """Yield the audio of the default microphone; raise InputError if there is none."""
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: without the PortAudio library
        raise InputError(
            f"audio: none is given, and the microphone cannot be used ({error}); install "
            "espnet_medusa[live] (and PortAudio), or give a file or - for a pipe"
        ) from None
    waiting: queue.Queue = queue.Queue()  # a microphone does not wait

    def take(block: np.ndarray, *_: Any) -> None:
        waiting.put(block.mean(axis=1))

    try:
        rate_hz = round(sounddevice.query_devices(kind="input")["default_samplerate"])
        microphone = sounddevice.InputStream(rate_hz, channels=1, dtype="float32", callback=take)
    except (sounddevice.PortAudioError, ValueError) as error:
        raise InputError(f"microphone: {error}; connect one, or give a file or -") from None
    with microphone:
        yield from resampled(_take_all(waiting, stopped), rate_hz)


def in_thread(open_pieces: Callable[[], Pieces], stopped: threading.Event) -> Pieces:
    """Read pieces in another thread while the caller decodes; errors are raised in this one."""
    waiting: queue.Queue = queue.Queue(WAITING)

    def read() -> None:
        try:
            for piece in open_pieces():
                waiting.put(piece)
            waiting.put(None)
        except Exception as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    return _take_all(waiting, stopped)


def _take_all(waiting: queue.Queue, stopped: threading.Event) -> Pieces:
    """Yield pieces up to None, or up to those that wait when ``stopped`` is set."""
    while True:
        ends = stopped.is_set()
        try:
            piece = waiting.get(block=not ends, timeout=WAIT_S)
        except queue.Empty:
            if ends:
                return
            continue
        if isinstance(piece, Exception):
            raise piece
        if piece is None:
            return
        yield piece


def resampled(pieces: Pieces, rate_hz: int) -> Pieces:
    """Convert pieces (N,) from a rate to 16 kHz."""
    if rate_hz == RATE_HZ:
        yield from pieces
        return
    convert = soxr.ResampleStream(rate_hz, RATE_HZ, 1, dtype="float32")
    for piece in pieces:
        yield convert.resample_chunk(np.ascontiguousarray(piece, np.float32))
    yield convert.resample_chunk(np.zeros(0, np.float32), last=True)


def _decode_pipe(stream: BinaryIO) -> Pieces:
    pipe = Pipe(stream)
    return _container(pipe) if is_container(pipe.head) else _pcm(pipe)


class Pipe:
    """A stream that cannot be rewound; ``head`` has its first bytes, which ``read`` repeats."""

    def __init__(self, stream: BinaryIO):
        self.stream, self.head = stream, b""
        while len(self.head) < HEAD and (data := self._more(HEAD - len(self.head))):
            self.head += data
        self.rest = self.head

    def _more(self, count: int) -> bytes:
        # Not ``read``, which waits until all bytes have come.
        return getattr(self.stream, "read1", self.stream.read)(count)

    def read(self, count: int = 1 << 16) -> bytes:
        if self.rest:
            data, self.rest = self.rest[:count], self.rest[count:]
            return data
        return self._more(count)


def is_container(head: bytes) -> bool:
    """Return whether the first bytes of a stream are those of a container, not of samples."""
    names = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"\x1aE\xdf\xa3", b"ID3", b"FORM", b"caff")
    is_mpegts = len(head) == HEAD and {*head[::188]} == {0x47}
    return head.startswith((*names, b".snd", b"FLV\x01")) or head[4:8] == b"ftyp" or is_mpegts


def _pcm(pipe: Pipe) -> Pieces:
    """Read little-endian 16-bit samples; an odd last byte is left out."""
    rest = b""
    while data := pipe.read(2 * PIECE):
        data = rest + data
        whole = len(data) - len(data) % 2
        rest = data[whole:]
        yield np.frombuffer(data[:whole], "<i2").astype(np.float32) / 32768


def _container(pipe: Pipe) -> Pieces:
    import av  # slow to import

    limits = {"format_whitelist": FORMATS, "protocol_whitelist": "none"}
    try:
        with av.open(pipe, options=limits | QUICK, buffer_size=4096) as container:
            if not container.streams.audio:
                raise AudioError("-: has no audio that FFmpeg decodes", HOW_TO_PIPE)
            audio = container.streams.audio[0]
            yield from resampled(_mixed(container, audio), audio.codec_context.rate)
    except (av.FFmpegError, ValueError, LookupError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AudioError(f"-: FFmpeg cannot read it ({reason})", HOW_TO_PIPE) from error


def _mixed(container: av.container.InputContainer, audio: av.AudioStream) -> Pieces:
    """Decode, and average channels; where they cancel each other, take the loudest."""
    import av

    convert = FrameConverter(audio.codec_context.rate)
    for packet in container.demux(audio):
        with suppress(av.InvalidDataError):  # a damaged packet
            for frame in packet.decode():
                yield from map(_mix, convert(frame))
    yield from map(_mix, convert.flush())


def _mix(block: np.ndarray) -> np.ndarray:
    powers, mixed = np.square(block).mean(axis=0), block.mean(axis=1)
    if np.square(mixed).mean() < CANCELLED * powers.mean():
        return block[:, int(powers.argmax())]
    return mixed
