"""Held-out utterances, read and encoded once for all settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.search.state import SearchState
from espnet_medusa.decoding.tree.proposer import DraftInput
from espnet_medusa.inference.batches import Utterance, make_batches
from espnet_medusa.inference.job import JobInput
from espnet_medusa.inference.reader import UtteranceReader
from espnet_medusa.recipes.tuning.stopwatch import Clock
from espnet_medusa.recipes.tuning.tuned_model import DraftReader, TunedModel


class DraftReading(NamedTuple):
    inputs: list[DraftInput]  # U
    seconds: float  # time of its features and encoder, without the main model's


@dataclass(frozen=True)
class HeldOutBatch:
    keys: list[str]  # U utterance ids
    encoder_out: torch.Tensor  # (U, S, D) encoder output
    frames: torch.Tensor  # lengths (U,); with merged padding: frames of each row (U, S)
    prompt: Sequence[torch.Tensor]  # U times (P,) prompt tokens
    audio_seconds: float  # audio length, summed over the batch
    encoder_seconds: float  # time of the encoder, and of detecting languages
    # By drafter; missing for heads, which use the main encoder output.
    readings: dict[str, DraftReading] = field(default_factory=dict)

    def decode(self, search: Any, limits: LengthLimits, drafter: str) -> list[SearchState]:
        reading = self.readings.get(drafter)
        return search(
            self.encoder_out, self.frames, self.prompt, limits, reading and reading.inputs
        )

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
    main: TunedModel,
    utterances: Sequence[Utterance],
    batch_size: int,
    max_batch_frames: int | None,
    clock: Clock,
    readers: Mapping[str, DraftReader],
) -> list[HeldOutBatch]:
    """Encode in the batches of a decoding job; ``readers`` as ``Available.readers``."""

    def encode_batch(members: Sequence[Utterance]) -> HeldOutBatch:
        started = clock.now()
        inputs = main.encode(members)
        seconds, readings = clock.now() - started, {}
        for name, reader in readers.items():
            started = clock.now()
            drafted = reader.read(inputs)
            readings[name] = DraftReading(drafted, clock.now() - started)
        samples = sum(len(utterance.speech) for utterance in members)
        keys = [utterance.key for utterance in members]
        return HeldOutBatch(
            *(keys, inputs.encoder_out, inputs.frames, inputs.prompts),
            *(samples / main.sample_rate_hz, seconds, readings),
        )

    lengths, batches = [utterance.frames for utterance in utterances], []
    groups = make_batches(lengths, batch_size, max_batch_frames)
    for indices in tqdm(groups, desc="encoding", unit="batch"):
        members = [utterances[index] for index in indices]
        if not batches:  # warm-up
            encode_batch(members)
        batches.append(encode_batch(members))
    return batches
