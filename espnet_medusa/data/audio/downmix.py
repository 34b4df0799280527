"""Mix channels to one, also where opposite phases cancel each other."""

import logging

import numpy as np

FRAME_S = 0.1
# Cancelled: the average has less of the channels' mean power (-20 dB). One loud channel of eight
# has -9 dB.
CANCELLED = 0.01

logger = logging.getLogger(__name__)


class Downmix:
    """Averages channels; frames in which they cancel each other have one channel instead.

    This is the one that is loudest in these frames.

    Attributes:
        samples: The result of ``finish``, float32 (N,).
        cancelled: Number of samples that have one channel.
    """

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self.size = max(1, round(FRAME_S * rate_hz))
        self.rest: np.ndarray | None = None  # an incomplete frame (n, channels)
        self.parts: list[np.ndarray] = []
        self.kept: list[tuple[int, np.ndarray]] = []  # cancelled frames: sample, (size, channels)
        self.length = 0
        self.cancelled, self.channel = 0, 0  # samples, and the channel that replaces them
        self.samples = np.zeros(0, np.float32)

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate_hz

    def add(self, block: np.ndarray) -> None:
        """Add samples (n, channels); blocks may differ in channels."""
        if self.rest is not None and self.rest.shape[1] != block.shape[1]:
            self._close()
        if block.shape[1] == 1:
            self._append(block[:, 0])
            return
        block = block if self.rest is None else np.concatenate((self.rest, block))
        whole = len(block) // self.size * self.size
        self._mix(block[:whole].reshape(-1, self.size, block.shape[1]))
        self.rest = block[whole:].copy()

    def finish(self, name: str | None = None) -> np.ndarray:
        """Return the mixed samples, float32 (N,); warn if channels of ``name`` were cancelled."""
        self._close()
        if self.cancelled and name is not None:
            lengths = f"{self.cancelled / self.rate_hz:.2f} of {self.length / self.rate_hz:.2f} s"
            found = f"its channels cancel each other in {lengths}"
            rest = "" if self.cancelled == self.length else " there, elsewhere their average"
            logger.warning(f"{name}: {found}; only channel {self.channel} is read{rest}")
        samples = np.concatenate(self.parts) if self.parts else self.samples
        self.samples = samples.astype(np.float32, copy=False)
        return self.samples

    def _append(self, samples: np.ndarray) -> None:
        self.parts.append(samples)
        self.length += len(samples)

    def _mix(self, frames: np.ndarray) -> None:
        """Append frames (F, size, channels)."""
        mixed = frames.mean(axis=2)
        with np.errstate(over="ignore", invalid="ignore"):  # `check_audio` refuses such samples
            power = np.einsum("fsc,fsc->f", frames, frames) / frames.shape[2]
            lost = np.einsum("fs,fs->f", mixed, mixed) < CANCELLED * power
        for frame in np.flatnonzero(lost):
            self.kept.append((self.length + frame * frames.shape[1], frames[frame].copy()))
        self._append(mixed.reshape(-1))

    def _close(self) -> None:
        """End the samples of one number of channels: choose the channel of cancelled frames."""
        if self.rest is not None and len(self.rest):
            self._mix(self.rest[None])
        self.rest = None
        if self.kept:
            powers = sum((frame.astype(np.float64) ** 2).sum(axis=0) for _, frame in self.kept)
            best = int(np.argmax(powers))
            samples = np.concatenate(self.parts)
            for start, frame in self.kept:
                samples[start : start + len(frame)] = frame[:, best]
                self.cancelled += len(frame)
            self.parts, self.kept, self.channel = [samples], [], best + 1
