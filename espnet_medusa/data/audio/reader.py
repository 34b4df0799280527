"""Read, check and resample the audio of wav.scp values."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import soxr

from espnet_medusa.data.audio.container import (
    MP3_FRAME_SAMPLES,
    explain_unreadable,
    may_be_longer,
    missing_bytes,
)
from espnet_medusa.data.audio.downmix import Downmix
from espnet_medusa.data.audio.media_file import MediaError, MediaFile
from espnet_medusa.data.audio.reading import REFUSE, STRICT, AudioReading, Damage
from espnet_medusa.data.audio.source import (
    AudioError,
    AudioInfo,
    AudioSource,
    DamagedError,
    open_source,
    source_columns,
)
from espnet_medusa.data.audio.unclosed import Patched, find_unwritten_length

# Start, end (None: that of the audio) and maximum length of what is read, in s.
Part = tuple[float, float | None, float | None]
WHOLE: Part = 0.0, None, None
BLOCK_VALUES = 1 << 20  # of all channels together
# libsndfile reports the largest integer for a FLAC stream without a length in its header.
UNKNOWN_FRAMES = 1 << 48
CUT = "cut it at pauses, see docs/long_audio.md"
SEEK_FAILED = 39  # SFE_BAD_SEEK of libsndfile
# Kaldi's extract-segments lets a segment end this much after its recording.
MAX_OVERSHOOT_S = 0.5
# Float audio may exceed 1 slightly; values far above 1 are integers that were never scaled.
MAX_AMPLITUDE = 32.0
# A truncated file has a good header, so `measure_audio` reads its end, too.
TAIL_S = 0.1
Sound = soundfile.SoundFile | MediaFile
SNDFILE_ERRORS = (soundfile.SoundFileError, RuntimeError, ValueError, TypeError, OSError)

logger = logging.getLogger(__name__)


class TooLongError(AudioError):
    """Audio that is longer than allowed."""


def probe_audio(
    entry: str | AudioSource, allow_pipes: bool = False, reading: AudioReading = STRICT
) -> AudioInfo:
    """Read the header of a wav.scp value without decoding the samples.

    Arguments and errors are those of `read_audio`, but damaged samples are not detected.
    """
    column = source_columns(entry)[0] if isinstance(entry, str) else entry
    with _open(open_source(column, allow_pipes), reading) as sound:
        return _info(sound)


def measure_audio(path: Path) -> float:
    """Read the header and the end of a file and return its duration in seconds.

    Raise AudioError if it is missing, truncated, empty or no audio. Stage 3, which decodes all
    audio, finds damage in the middle.
    """
    duration_s = probe_audio(str(path)).duration_s
    start_s = 0.0 if duration_s is None else max(0.0, duration_s - TAIL_S)
    samples, rate_hz = read_audio(str(path), start_s=start_s)
    check_audio(samples, rate_hz)
    return start_s + len(samples) / rate_hz


def read_audio(
    entry: str | AudioSource,
    allow_pipes: bool = False,
    *,
    start_s: float = 0.0,
    end_s: float | None = None,
    max_duration_s: float | None = None,
    reading: AudioReading = STRICT,
) -> tuple[np.ndarray, int]:
    """Read a wav.scp value; channels are mixed as by `Downmix`.

    Args:
        entry: Path of any file that libsndfile or FFmpeg reads, `x.ark:offset`, or `command |`;
            or several files, each with some of the channels; or an opened source.
        end_s: End of the part to read; None or negative: that of the audio, as in Kaldi's segments.
        max_duration_s: Refuse longer audio, from its header if possible.
        reading: How damaged audio and times of media files are read.

    Returns:
        Samples, float32 (N,), in [-1, 1] (N may be 0: see `check_audio`), and the rate in Hz.

    Raises:
        AudioError: The audio is missing, corrupt, truncated, of an unsupported format, or a
            command that is not allowed; one line with file, reason and remedy.
        TooLongError: It is longer than ``max_duration_s``.
    """
    columns = source_columns(entry) if isinstance(entry, str) else [entry]
    part = start_s, end_s, max_duration_s
    if len(columns) > 1:
        return _join(entry, [read_mixed(open_source(one), part, reading) for one in columns])
    mixed = read_mixed(open_source(entry, allow_pipes), part, reading)
    return mixed.samples, mixed.rate_hz


def read_mixed(source: AudioSource, part: Part = WHOLE, reading: AudioReading = STRICT) -> Downmix:
    """Read as `read_audio`; the result also has how many samples cancelled each other."""
    with source.open() as stream:
        unwritten = find_unwritten_length(stream, source.size_bytes) is not None
    try:
        mixed = _read(source, part, reading)
    except DamagedError as error:
        if reading.on_bad_audio == REFUSE:
            raise
        mixed = _read_damaged(source, part, reading, error)
    if unwritten:
        length = f"all {mixed.duration_s:.2f} s are read"
        logger.warning(f"{source.name}: its header has no length, it was never closed; {length}")
    return mixed


def _read(
    source: AudioSource, part: Part, reading: AudioReading, damage: Damage | None = None
) -> Downmix:
    """Read as `read_audio`; ``damage``: collects what cannot be decoded, instead of an error."""
    start_s, end_s, max_duration_s = part
    with source.open() as stream:
        n_missing = missing_bytes(stream, source.size_bytes)
    with _open(source, reading, damage) as sound:
        info = _info(sound)
        if n_missing and damage is None:
            length_s = info.duration_s
            if length_s is not None and source.size_bytes:
                length_s *= 1 + n_missing / source.size_bytes
            reason = f"its header declares {n_missing} bytes more than its {source.size_bytes}"
            raise DamagedError(f"{source.name}: is truncated ({reason})", length_s)
        start, end = _sample_range(source.name, info, start_s, end_s)
        if end is not None:
            _check_length(f"{source.name}:", end - start, info.rate_hz, max_duration_s)
        try:
            mixed = _decode(source, sound, start, end, max_duration_s, damage)
            if isinstance(sound, MediaFile) and sound.tracks is not None:
                logger.warning(f"{source.name}: {sound.tracks}")
            return mixed
        except DamagedError as error:
            if info.format_name != "OGG":
                raise
            # libsndfile takes a gap in the times for missing samples.
            try:
                media = MediaFile(source, None, reading)
            except MediaError:
                raise error from None
        with media:
            return _decode(source, media, start, end, max_duration_s)


def _join(entry: str, channels: Sequence[Downmix]) -> tuple[np.ndarray, int]:
    """Mix the channels of files, which must have equal lengths and rates."""
    sizes = [(len(one.samples), one.rate_hz) for one in channels]
    if len({*sizes}) > 1:
        found = ", ".join(f"{count} at {rate_hz} Hz" for count, rate_hz in sizes)
        reason = f"{entry}: the files differ in samples ({found})"
        raise AudioError(reason, "give channels of one recording, or join the files before")
    downmix = Downmix(sizes[0][1])
    downmix.add(np.stack([one.samples for one in channels], axis=1))
    return downmix.finish(entry), sizes[0][1]


def _read_damaged(
    source: AudioSource, part: Part, reading: AudioReading, error: DamagedError
) -> Downmix:
    """Decode what is there of a damaged file, and warn; raise ``error`` if most is lost."""
    damage, (start_s, end_s, _) = Damage(), part
    mixed = _read(source, part, reading, damage)
    read_s = mixed.duration_s
    if read_s == 0 or damage.lost_s > read_s - damage.filled_s:
        raise error
    missing_s = 0.0
    if end_s is None and error.length_s is not None:
        missing_s = error.length_s - start_s - read_s - (damage.lost_s - damage.filled_s)
    logger.warning(f"{source.name}: is damaged: {damage.describe(start_s + read_s, missing_s)}")
    return mixed


def _open(source: AudioSource, reading: AudioReading, damage: Damage | None = None) -> Sound:
    """Open by libsndfile, or else by FFmpeg, which also goes on after ``damage``."""
    if damage is not None:
        with suppress(MediaError, AudioError):
            return MediaFile(source, None, reading, damage)
    try:
        sound = soundfile.SoundFile(_sndfile_target(source))
    except SNDFILE_ERRORS as error:
        sndfile_error = error
    else:
        if (reading.audio_track or 1) > 1:
            with suppress(MediaError):
                return MediaFile(source, None, reading)
        with source.open() as stream:
            is_whole = not may_be_longer(stream, source.size_bytes, sound.format)
        if is_whole:
            return sound
        try:
            whole = MediaFile(source, sound.format.lower())
        except MediaError:
            return sound
        sound.close()
        return whole
    try:
        return MediaFile(source, None, reading)
    except MediaError as error:
        with source.open() as stream:
            explained = explain_unreadable(stream.read(1024))
        if explained is not None:
            raise AudioError(f"{source.name}: {explained[0]}", explained[1]) from error
        raise AudioError(
            f"{source.name}: is no audio that libsndfile or FFmpeg reads, or its header is damaged"
            f" ({sndfile_reason(sndfile_error)})",
            "convert it to wav or flac, or remove the utterance",
        ) from error


def _sndfile_target(source: AudioSource) -> str | BinaryIO:
    """Return the argument for `soundfile.SoundFile`, with the length that the header lacks."""
    with source.open() as stream:
        unwritten = find_unwritten_length(stream, source.size_bytes)
    return source.sndfile_target() if unwritten is None else Patched(source.open(), *unwritten)


def sndfile_reason(error: Exception) -> str:
    """Return libsndfile's message without the address of the stream."""
    return str(getattr(error, "error_string", error)).strip().rstrip(".").replace("\n", " ")


def _info(sound: Sound) -> AudioInfo:
    if isinstance(sound, MediaFile):
        return sound.info
    n_samples = sound.frames if sound.frames < UNKNOWN_FRAMES else None
    return AudioInfo(sound.samplerate, sound.channels, n_samples, sound.format, sound.subtype)


def _sample_range(
    name: str, info: AudioInfo, start_s: float, end_s: float | None
) -> tuple[int, int | None]:
    """Convert a time range into samples and check it against the recording's length."""
    start = round(start_s * info.rate_hz)
    if end_s is None or end_s < 0:
        end = info.n_samples
    else:
        end = round(end_s * info.rate_hz)
        if info.n_samples is not None:
            if (end - info.n_samples) / info.rate_hz > MAX_OVERSHOOT_S:
                lengths = f"ends at {end_s} s but the recording at {info.duration_s:.2f} s"
                raise AudioError(f"{name}: the segment {lengths}", "correct segments")
            end = min(end, info.n_samples)
    if start_s < 0 or (end is not None and start > end):
        problem = f"{name}: the segment starts at {start_s} s, outside the recording"
        raise AudioError(problem, "correct segments")
    return start, end


def _decode(
    source: AudioSource,
    sound: Sound,
    start: int,
    end: int | None,
    max_duration_s: float | None,
    damage: Damage | None = None,
) -> Downmix:
    """Decode samples [start, end) and mix channels.

    Stops soon after ``max_duration_s`` if the header has no length, and with ``damage`` at an error
    instead of raising it.
    """
    info, count = _info(sound), 0
    downmix = Downmix(info.rate_hz)
    limit = None if max_duration_s is None else round(max_duration_s * info.rate_hz)
    try:
        for block in _blocks(sound, start, end):
            downmix.add(block)
            count += len(block)
            if limit is not None and count > limit:
                message = f"lasts longer than the {max_duration_s:g} s that are allowed"
                raise TooLongError(f"{source.name}: {message}", CUT)
    except AudioError:  # MediaFile detects truncation itself.
        raise
    except (*SNDFILE_ERRORS, MediaError) as error:
        if damage is None:
            problem = f"{source.name}: is corrupt or truncated ({sndfile_reason(error)})"
            raise DamagedError(problem, info.duration_s) from error
        damage.stop = sndfile_reason(error)
    samples = downmix.finish(source.name)
    expected = None if end is None or isinstance(sound, MediaFile) else end - start
    if expected is not None and damage is None and len(samples) < expected:
        tolerance = MP3_FRAME_SAMPLES if info.subtype.startswith("MPEG") else 0
        if len(samples) < expected - tolerance:
            sizes = f"{len(samples)} of {expected} samples"
            raise DamagedError(f"{source.name}: is truncated ({sizes})", info.duration_s)
    return downmix


def _blocks(sound: Sound, start: int, end: int | None) -> Iterator[np.ndarray]:
    """Yield float32 (frames, channels) from `start` to `end`, or to the end of the stream."""
    if isinstance(sound, MediaFile):
        # The length in its header is inexact.
        yield from sound.blocks(start, None if end == sound.info.n_samples else end)
        return
    position, block_frames = 0, _block_frames(sound)
    if start and sound.seekable():
        position = sound.seek(start)
    while position < start and len(block := sound.read(min(block_frames, start - position))):
        position += len(block)  # GSM 6.10 and similar codecs cannot seek.
    while end is not None and position < end:
        block = sound.read(min(block_frames, end - position), dtype="float32", always_2d=True)
        if len(block) == 0:
            return
        yield block
        position += len(block)
    is_last = end is not None
    while not is_last:
        block, is_last = _read_streamed_flac(sound)
        if len(block):
            yield block


def _block_frames(sound: soundfile.SoundFile) -> int:
    return max(1, BLOCK_VALUES // sound.channels)


def _read_streamed_flac(sound: soundfile.SoundFile) -> tuple[np.ndarray, bool]:
    """Read a block of a FLAC stream without a length; returns the block and whether it is the last.

    After reading, soundfile seeks to the end of a full block, which fails at the end of the stream.
    FLAC cannot contain NaN. The block is first filled with NaN, so all other values were read.
    """
    block = np.full((_block_frames(sound), sound.channels), np.nan, dtype=np.float32)
    try:
        read = sound.read(out=block)
    except soundfile.LibsndfileError as error:
        if error.code != SEEK_FAILED:
            raise
        return block[: int(np.count_nonzero(~np.isnan(block[:, 0])))], True
    return read, len(read) < len(block)


def _check_length(name: str, n_samples: int, rate_hz: int, max_duration_s: float | None) -> None:
    if max_duration_s is not None and n_samples > round(max_duration_s * rate_hz):
        limit = f"more than the {max_duration_s:g} s that are allowed"
        raise TooLongError(f"{name} lasts {n_samples / rate_hz:.2f} s, {limit}", CUT)


def check_audio(
    samples: np.ndarray,
    rate_hz: int,
    expected_rate_hz: int | None = None,
    max_duration_s: float | None = None,
    min_samples: int = 1,
) -> None:
    """Refuse audio that a model cannot process; nothing is cut, padded or resampled silently.

    ``samples`` are mono, float (N,). The AudioError is one line with the reason and the remedy; the
    caller adds file and id.
    """
    if samples.ndim != 1:
        raise AudioError(f"has shape {samples.shape}", "give one channel, shape (N,)")
    if len(samples) == 0:
        raise AudioError("has zero length", "remove the utterance")
    if len(samples) < min_samples:
        reason = f"has {len(samples)} samples, fewer than the {min_samples} needed"
        raise AudioError(reason, "remove the utterance")
    if expected_rate_hz is not None and rate_hz != expected_rate_hz:
        raise AudioError(
            f"has a rate of {rate_hz} Hz, the model expects {expected_rate_hz} Hz",
            f"resample it with espnet_medusa.bin.stage format_data --fs {expected_rate_hz}",
        )
    _check_length("", len(samples), rate_hz, max_duration_s)
    peak = float(np.max(np.abs(samples)))
    if not np.isfinite(peak):
        n_bad = int(np.count_nonzero(~np.isfinite(samples)))
        raise AudioError(f"has {n_bad} NaN or infinite samples", "write the file again")
    if peak > MAX_AMPLITUDE:
        reason = f"reaches an amplitude of {peak:g}, not within [-1, 1]"
        raise AudioError(reason, "scale it, or store integers")


def resample(samples: np.ndarray, from_hz: float, to_hz: int) -> np.ndarray:
    """Resample mono audio with soxr's high quality filter: (N,) to (N * to_hz / from_hz,)."""
    samples = samples.astype(np.float32, copy=False)
    return samples if from_hz == to_hz else soxr.resample(samples, from_hz, to_hz)
