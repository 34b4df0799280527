"""Held-out utterances, read and encoded once for all settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from espnet_medusa.decoding.batches import FRAMES_PER_S, make_batches
from espnet_medusa.decoding.job import JobInput, Preprocess
from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.audio import check_audio, read_audio
from espnet_medusa.log_mel import HOP_SAMPLES
from espnet_medusa.search.beam import LengthLimits
from espnet_medusa.search.greedy import GreedySearch
from espnet_medusa.search.walk import Walk
from espnet_medusa.speech2text import Speech2Text
from espnet_medusa.tuning.stopwatch import Clock


@dataclass(frozen=True)
class HeldOutBatch:
    """What a search is called with.

    Attributes:
        keys: U utterance ids.
        memory: (U, S, D) encoder output.
        frames: (U,) lengths of it.
        prompt: (U, P) tokens to start from.
        audio_seconds: Length of the audio, of all together.
        encoder_seconds: Time that encoding took.
    """

    keys: list[str]
    memory: torch.Tensor
    frames: torch.Tensor
    prompt: torch.Tensor
    audio_seconds: float
    encoder_seconds: float

    def decode(self, search: Any, limits: LengthLimits) -> list[Walk]:
        """Run a greedy or a beam search."""
        if isinstance(search, GreedySearch):
            sizes = self.frames.tolist()
            most, least = [*map(limits.most, sizes)], [*map(limits.least, sizes)]
            return search(self.memory, self.frames, self.prompt, most, least)
        return search(self.memory, self.frames, self.prompt, limits)


def choose_keys(keys: Sequence[str], count: int) -> list[str]:
    """``count`` ids evenly spaced over the list; all of them when there are fewer."""
    if len(keys) <= count:
        return [*keys]
    return [keys[index * len(keys) // count] for index in range(count)]


def read_utterances(
    job: JobInput,
    count: int,
    speech2text: Speech2Text,
    allow_pipes: bool,
    preprocess: Preprocess | None,
) -> dict[str, np.ndarray]:
    """Audio of the utterances to tune on, by id, as decoding would see it.

    Raises:
        InputError: There is no utterance, or one cannot be read.
    """
    if not job.keys:
        raise InputError("no utterances to tune on; give a wav.scp that lists some")
    speeches = {}
    rate_hz, window_s = speech2text.sample_rate_hz, speech2text.window_s
    for key in choose_keys(job.keys, count):
        if key in job.problems:
            raise InputError(job.problems[key])
        try:
            samples, read_rate_hz = read_audio(
                job.entries[key], allow_pipes=allow_pipes, max_duration_s=window_s
            )
            check_audio(samples, read_rate_hz, rate_hz, window_s, min_samples=HOP_SAMPLES)
        except ValueError as error:
            raise InputError(f"{key}: {error}; list other utterances with --key_file") from error
        data = {"speech": samples.astype(np.float32)}
        if preprocess is not None:
            data = preprocess(key, data)
        speeches[key] = data["speech"]
    return speeches


@torch.no_grad()
def encode(
    speech2text: Speech2Text,
    speeches: dict[str, np.ndarray],
    batch_size: int,
    max_batch_frames: int | None,
    clock: Clock,
) -> list[HeldOutBatch]:
    """Encode in batches as a decoding job makes them."""
    keys = [*speeches]
    rate_hz = speech2text.sample_rate_hz
    lengths = [len(speeches[key]) * FRAMES_PER_S // rate_hz for key in keys]
    if getattr(speech2text.asr_model.encoder, "pad_to_window", False):
        lengths = [round(speech2text.window_s * FRAMES_PER_S)] * len(keys)
    batches = []
    warm = False
    for indices in tqdm(
        make_batches(lengths, batch_size, max_batch_frames), desc="encoding", unit="batch"
    ):
        members = [keys[index] for index in indices]
        audio = [torch.as_tensor(speeches[key]) for key in members]
        if not warm:  # the first pass of a process also sets up libraries
            _encode(speech2text, audio)
            warm = True
        started = clock.now()
        memory, frames = _encode(speech2text, audio)
        seconds = clock.now() - started
        prompt = speech2text.beam_search.hyp_primer or [speech2text.asr_model.sos]
        batches.append(
            HeldOutBatch(
                members,
                memory,
                frames,
                torch.tensor([[*prompt]] * len(members), device=memory.device),
                sum(map(len, audio)) / rate_hz,
                seconds,
            )
        )
    return batches


def _encode(
    speech2text: Speech2Text, audio: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encoder output (U, S, D) and its lengths (U,)."""
    device = speech2text.device
    lengths = torch.tensor([len(speech) for speech in audio], device=device)
    padded = torch.nn.utils.rnn.pad_sequence(audio, batch_first=True)
    padded = padded.to(device, getattr(torch, speech2text.dtype))
    memory, frames = speech2text.asr_model.encode(padded, lengths)
    return (memory[0] if isinstance(memory, tuple) else memory), frames
