"""Voice activity detection with Silero's network, whose weights are in the package ``silero_vad``.

https://github.com/snakers4/silero-vad (MIT license). Its input is 16 kHz in frames of 32 ms.
"""

from __future__ import annotations

import math
import threading
import warnings
from dataclasses import asdict, dataclass, fields
from functools import cache

import numpy as np
import torch
from torch.nn.functional import pad

from espnet_medusa.data.audio.quiet_parts import NEAR_FRAMES, gain_of, raise_quiet_parts
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_above, check_at_least

RATE_HZ = 16000
FRAME, CONTEXT = 512, 64  # samples of a frame, and of the audio before it that the network reads
BLOCK = 4096  # frames in memory at once
CHUNK_S = 1.0, 30.0
STEP_S = FRAME / RATE_HZ  # duration of a frame
# Minimum duration of a pause, and the part at each of its ends that counts as speech.
PAUSE_S, MARGIN_S = 1.0, 0.25
SILENT = 0.2  # frames of noise have lower probabilities; soft or distorted words have higher ones


class Silero:
    """The network's modules, which compute all frames of a block at once.

    ``silero_vad`` itself computes one frame after the other, or runs ONNX in one thread. Its
    ``find_speech`` turns probabilities into spans of speech.
    """

    def __init__(self) -> None:
        num_threads = torch.get_num_threads()
        import silero_vad  # slow; sets torch to one thread

        torch.set_num_threads(num_threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's, about TorchScript
            network = silero_vad.load_silero_vad()._model
        self.find_speech = silero_vad.get_speech_timestamps_from_probs
        self.spectrum, self.encoder = network.stft, network.encoder
        self.output = network.decoder.decoder
        cell = network.decoder.rnn.state_dict()
        gates, size = cell["weight_ih"].shape
        self.lstm = torch.nn.LSTM(size, gates // 4)
        self.lstm.load_state_dict({f"{name}_l0": value for name, value in cell.items()})

    @torch.inference_mode()
    def probabilities(self, samples: torch.Tensor) -> torch.Tensor:
        """Return probabilities of speech (frames,) in samples (samples,): float32, 16 kHz."""
        if not len(samples):
            return samples
        samples, blocks, state = pad(samples, (CONTEXT, -len(samples) % FRAME)), [], None
        for frames in samples.unfold(0, CONTEXT + FRAME, FRAME).split(BLOCK):
            block, state = self.advance(frames, state)
            blocks.append(block)
        return torch.cat(blocks)

    @torch.inference_mode()
    def advance(
        self, frames: torch.Tensor, state: tuple[torch.Tensor, ...] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return probabilities (frames,) and the LSTM's state after them.

        Args:
            frames: (frames, CONTEXT + FRAME) samples.
            state: The state after the frames before; None: there are none.
        """
        encoded = self.encoder(self.spectrum(frames)).permute(0, 2, 1)  # (frames, 1, D)
        hidden, state = self.lstm(encoded, state)
        return self.output(hidden.permute(0, 2, 1)).flatten(), state


_loading, _load_silero = threading.Lock(), cache(Silero)


def load_silero() -> Silero:
    """Return the network, loaded once per process."""
    with _loading:  # loading changes torch's number of threads for a moment
        return _load_silero()


@dataclass(frozen=True)
class VadParameters:
    """Parameters of voice activity detection, as in faster-whisper's batched pipeline.

    Only the minimal speech duration differs: Whisper would turn clicks into words. Raises
    InputError for a value that is not allowed.
    """

    threshold: float = 0.5  # probability at which speech begins
    neg_threshold: float | None = None  # probability at which speech ends; None: 0.15 less
    min_speech_duration_ms: float = 100  # shorter speech is dropped
    max_speech_duration_s: float | None = None  # longest chunk to decode; None: the window
    min_silence_duration_ms: float = 160  # shorter pauses are part of the speech
    speech_pad_ms: float = 400  # padding before and after speech

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) and (value, field.default) != (None, None):
                raise InputError(f"vad_parameters: {field.name}: {value}; allowed: a number")
        check_above(self.threshold, 0, "vad_parameters: threshold", at_most=1)
        if self.neg_threshold is not None:
            check_above(self.neg_threshold, 0, "vad_parameters: neg_threshold", self.threshold)
        for name in ("min_speech_duration_ms", "min_silence_duration_ms", "speech_pad_ms"):
            check_at_least(getattr(self, name), 0, f"vad_parameters: {name}")
        longest_s, (least_s, most_s) = self.max_speech_duration_s, CHUNK_S
        if longest_s is not None and not least_s <= longest_s <= most_s:
            raise InputError(
                f"vad_parameters: max_speech_duration_s: {longest_s}; allowed: {least_s:g} to "
                f"{most_s:g}, Whisper's window"
            )


@dataclass(frozen=True)
class SpeechActivity:
    probabilities: np.ndarray  # of speech, (frames of 32 ms,)
    num_samples: int  # length of the recording

    @classmethod
    def of(cls, samples: np.ndarray | torch.Tensor) -> SpeechActivity:
        """Compute the probabilities of (samples,) in [-1, 1] at 16 kHz, also of quiet ones."""
        samples = raise_quiet_parts(torch.as_tensor(samples).float().cpu().numpy())
        return cls(load_silero().probabilities(torch.from_numpy(samples)).numpy(), len(samples))

    def new_speech_s(self, start_s: float, end_s: float) -> float | None:
        """Return the start of the first speech in a span; None: there is no speech.

        A word that begins earlier and ends in the first ``MARGIN_S`` does not count.
        """
        first = _frames(start_s, end_s).start
        speech = np.append(self.probabilities[max(first - 1, 0) :] > SILENT, False)
        silent_s = STEP_S * (first - 1 + int(np.argmin(speech)))  # after the word
        if first > 0 and speech[0] and silent_s <= start_s + MARGIN_S:
            start_s = max(silent_s, start_s)
        frames = _frames(start_s, end_s)
        places = np.flatnonzero(self.probabilities[frames] > SILENT)
        return max(STEP_S * (frames.start + int(places[0])), start_s) if len(places) else None

    def speech_begins_s(
        self, start_s: float, end_s: float, window_s: float, least_s: float
    ) -> float | None:
        """Return where speech begins in a span; None: nowhere.

        The ``window_s`` after it contain at least ``least_s`` of speech.
        """
        frames = _frames(start_s, end_s)
        places = np.flatnonzero(self.probabilities[frames] >= VadParameters.threshold)
        starts_s = (float(STEP_S * (frames.start + place)) for place in places)
        enough = (one for one in starts_s if self.speech_s(one, one + window_s) >= least_s)
        first_s = next(enough, None)
        return None if first_s is None else max(first_s, start_s)

    def speech_s(self, start_s: float, end_s: float) -> float:
        """Return the duration of speech in a span, without pauses."""
        frames = self.probabilities[_frames(start_s, end_s)]
        return STEP_S * int((frames >= VadParameters.threshold).sum())

    def pauses(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """Return long pauses in a span, without their margins, in s after ``start_s``."""
        frames = _frames(start_s, end_s)
        speech = np.pad(self.probabilities[frames] > SILENT, 1, constant_values=True)
        edges = np.flatnonzero(np.diff(speech)) + frames.start
        spans = STEP_S * edges.reshape(-1, 2) - start_s
        long = spans[np.diff(spans)[:, 0] >= PAUSE_S] + [MARGIN_S, -MARGIN_S]
        return [*map(tuple, long.tolist())]


class SpeechStream:
    """Probabilities of speech in a stream, each computed once, as the samples come.

    Quiet audio is amplified as by ``raise_quiet_parts``, but only from the level before it.
    """

    def __init__(self) -> None:
        self.first = 0  # number in the stream of the first frame of 32 ms that is stored
        self.probabilities = np.zeros(0, np.float32)
        self.rest = np.zeros(CONTEXT, np.float32)  # samples after the last context
        self.levels = np.zeros(NEAR_FRAMES - 1)  # powers of the last frames
        self.state: tuple[torch.Tensor, ...] | None = None

    def add(self, samples: np.ndarray, final: bool = False) -> None:
        """Add float32 samples (samples,) at 16 kHz; ``final``: also compute an incomplete frame."""
        self.rest = np.concatenate([self.rest, samples])
        if final:
            missing = -(len(self.rest) - CONTEXT) % FRAME
            self.rest = np.pad(self.rest, (0, missing))
        count = (len(self.rest) - CONTEXT) // FRAME
        if not count:
            return
        used = self.rest[: CONTEXT + count * FRAME]
        self.rest = self.rest[count * FRAME :].copy()
        frames = np.lib.stride_tricks.sliding_window_view(used, CONTEXT + FRAME)[::FRAME]
        power = np.square(frames[:, CONTEXT:], dtype=np.float64).mean(axis=1)
        levels = np.concatenate([self.levels, power])
        self.levels = levels[count:]
        gains = gain_of(np.lib.stride_tricks.sliding_window_view(levels, NEAR_FRAMES))
        scaled = torch.from_numpy(frames * gains[:, None].astype(np.float32))
        new, self.state = load_silero().advance(scaled, self.state)
        self.probabilities = np.concatenate([self.probabilities, new.numpy()])

    def places(self, start_s: float, end_s: float, threshold: float) -> np.ndarray:
        """Return the numbers of the frames in a span whose probability is above a threshold."""
        frames = _frames(start_s, end_s)
        inner = slice(max(frames.start - self.first, 0), max(frames.stop - self.first, 0))
        return np.flatnonzero(self.probabilities[inner] > threshold) + self.first + inner.start

    def forget(self, sample: int) -> None:
        """Free the frames before a sample of the stream."""
        count = min(max(sample // FRAME - self.first, 0), len(self.probabilities))
        self.probabilities, self.first = self.probabilities[count:].copy(), self.first + count


def _frames(start_s: float, end_s: float) -> slice:
    """Return the frames of 32 ms that a span touches."""
    return slice(math.floor(start_s / STEP_S), math.ceil(end_s / STEP_S))


class SpeechDetector:
    """Find spans of speech; one above ``longest_s`` is cut, at its longest pause if it has one."""

    def __init__(self, parameters: VadParameters, longest_s: float):
        self.find = load_silero().find_speech
        # The caller pads speech.
        self.options = asdict(parameters) | {"max_speech_duration_s": longest_s, "speech_pad_ms": 0}

    def __call__(self, speech: SpeechActivity) -> list[tuple[float, float]]:
        """Return start and end of speech in s, in order."""
        options = {**self.options, "audio_length_samples": speech.num_samples}
        chunks = self.find(speech.probabilities, **options)
        return [(chunk["start"] / RATE_HZ, chunk["end"] / RATE_HZ) for chunk in chunks]
