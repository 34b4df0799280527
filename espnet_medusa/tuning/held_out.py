"""Held-out utterances, read and encoded once for all settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from espnet_medusa.errors import InputError
from espnet_medusa.inference.batches import Utterance, make_batches
from espnet_medusa.inference.decoding_model import DecodingModel
from espnet_medusa.inference.job import JobInput
from espnet_medusa.inference.reader import UtteranceReader
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.state import SearchState
from espnet_medusa.tree.proposer import DraftInput
from espnet_medusa.tuning.stopwatch import Clock


class DraftReading(NamedTuple):
    """Inputs of a draft model or CTC for a batch."""

    inputs: list[DraftInput]  # U
    seconds: float  # time of its features and encoder, without the main model's


@dataclass(frozen=True)
class HeldOutBatch:
    """The inputs of a search."""

    keys: list[str]  # U utterance ids
    memory: torch.Tensor  # (U, S, D) encoder output
    frames: torch.Tensor  # lengths (U,) or frames per row (U, S), as in ``Encoded``
    prompt: torch.Tensor  # (U, P) prompt tokens
    audio_seconds: float  # audio length, summed over the batch
    encoder_seconds: float  # time of the encoder
    # By drafter; missing for heads, which use the main encoder output.
    readings: dict[str, DraftReading] = field(default_factory=dict)

    def decode(self, search: Any, limits: LengthLimits, drafter: str) -> list[SearchState]:
        reading = self.readings.get(drafter)
        return search(self.memory, self.frames, self.prompt, limits, reading and reading.inputs)

    def draft_encoder_seconds(self, drafter: str) -> float:
        return self.readings[drafter].seconds if drafter in self.readings else 0.0


def choose_keys(keys: Sequence[str], count: int) -> list[str]:
    """Return ``count`` evenly spaced ids; all of them if there are fewer."""
    count = min(count, len(keys))
    return [keys[index * len(keys) // count] for index in range(count)]


def read_utterances(
    job: JobInput, count: int, reader: UtteranceReader, max_duration_s: float | None
) -> list[Utterance]:
    """Read ``count`` utterances as a job does; raise InputError if one is unreadable."""
    if not job.keys:
        raise InputError("no utterances to tune on; give a wav.scp that lists some")
    utterances = []
    for key in choose_keys(job.keys, count):
        if key in job.problems:
            raise InputError(job.problems[key])
        try:
            utterances.append(reader.read(key, job.entries[key], max_duration_s))
        except ValueError as error:
            raise InputError(f"{key}: {error}; list other utterances with --key_file") from error
    return utterances


@torch.no_grad()
def encode(
    speech2text: Speech2Text,
    utterances: Sequence[Utterance],
    batch_size: int,
    max_batch_frames: int | None,
    clock: Clock,
    readers: Mapping[str, DecodingModel],
) -> list[HeldOutBatch]:
    """Encode in the batches of a decoding job; ``readers`` as ``Available.readers``."""
    model = speech2text.model

    def encode_batch(members: Sequence[Utterance]) -> HeldOutBatch:
        speeches = [utterance.speech for utterance in members]
        started = clock.now()
        audio = model.batch(speeches)
        memory, frames = model.encode(audio)
        seconds = clock.now() - started
        prompt = model.make_prompts(memory, frames, [member.language for member in members])
        readings = {}
        for name, reader in readers.items():
            branch = audio.branch()
            started = clock.now()
            inputs = reader.draft_inputs(branch, prompt.tolist())
            readings[name] = DraftReading(inputs, clock.now() - started)
        audio_seconds = sum(map(len, speeches)) / speech2text.sample_rate_hz
        keys = [utterance.key for utterance in members]
        return HeldOutBatch(keys, memory, frames, prompt, audio_seconds, seconds, readings)

    lengths, batches = [utterance.frames for utterance in utterances], []
    groups = make_batches(lengths, batch_size, max_batch_frames)
    for indices in tqdm(groups, desc="encoding", unit="batch"):
        members = [utterances[index] for index in indices]
        if not batches:  # warm-up
            encode_batch(members)
        batches.append(encode_batch(members))
    return batches
