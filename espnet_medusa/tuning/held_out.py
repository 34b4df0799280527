"""Held-out utterances, read and encoded once for all settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from espnet_medusa.errors import InputError
from espnet_medusa.inference.batches import Utterance, make_batches
from espnet_medusa.inference.draft_material import draft_inputs
from espnet_medusa.inference.job import JobInput, Preprocess, read_utterance
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.state import SearchState
from espnet_medusa.tree.proposer import DraftInput
from espnet_medusa.tuning.stopwatch import Clock


class DraftReading(NamedTuple):
    """What a draft model or CTC reads of a batch.

    Attributes:
        inputs: U.
        seconds: Time that features and its encoder took beside the main model's.
    """

    inputs: list[DraftInput]
    seconds: float


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
        readings: By drafter, of those that read something else than the search.
    """

    keys: list[str]
    memory: torch.Tensor
    frames: torch.Tensor
    prompt: torch.Tensor
    audio_seconds: float
    encoder_seconds: float
    readings: dict[str, DraftReading] = field(default_factory=dict)

    def decode(self, search: Any, limits: LengthLimits, drafter: str) -> list[SearchState]:
        """Run a greedy or a beam search with a drafter."""
        reading = self.readings.get(drafter)
        inputs = self.memory, self.frames, self.prompt
        return search(*inputs, limits, reading and reading.inputs)

    def draft_encoder_seconds(self, drafter: str) -> float:
        """Time that a drafter's own encoder took."""
        reading = self.readings.get(drafter)
        return 0.0 if reading is None else reading.seconds


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
) -> list[Utterance]:
    """The utterances to tune on, as decoding would see them.

    Raises:
        InputError: There is no utterance, or one cannot be read.
    """
    if not job.keys:
        raise InputError("no utterances to tune on; give a wav.scp that lists some")
    utterances = []
    for key in choose_keys(job.keys, count):
        if key in job.problems:
            raise InputError(job.problems[key])
        try:
            utterances.append(
                read_utterance(speech2text, key, job.entries[key], allow_pipes, preprocess)
            )
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
    readers: Mapping[str, Speech2Text],
) -> list[HeldOutBatch]:
    """Encode in batches as a decoding job makes them.

    Args:
        speech2text: The main model.
        utterances: To encode.
        batch_size: Utterances together.
        max_batch_frames: Bound on their padded length.
        clock: Tells the time.
        readers: As ``Available``'s.
    """
    lengths = [utterance.frames for utterance in utterances]
    batches = []
    for indices in tqdm(
        make_batches(lengths, batch_size, max_batch_frames), desc="encoding", unit="batch"
    ):
        members = [utterances[index] for index in indices]
        if not batches:  # the first pass of a process also sets up libraries
            _encode(speech2text, members, clock, readers)
        batches.append(_encode(speech2text, members, clock, readers))
    return batches


def _encode(
    speech2text: Speech2Text,
    members: Sequence[Utterance],
    clock: Clock,
    readers: Mapping[str, Speech2Text],
) -> HeldOutBatch:
    speeches = [utterance.speech for utterance in members]
    started = clock.now()
    audio = speech2text.batch(speeches)
    memory, frames = speech2text.encode(audio)
    seconds = clock.now() - started
    prompt = speech2text.prompts(memory, frames, [member.language for member in members])
    readings = {}
    for name, reader in readers.items():
        branch = audio.branch()
        started = clock.now()
        inputs = draft_inputs(reader, branch, prompt.tolist())
        readings[name] = DraftReading(inputs, clock.now() - started)
    audio_seconds = sum(map(len, speeches)) / speech2text.sample_rate_hz
    keys = [utterance.key for utterance in members]
    return HeldOutBatch(keys, memory, frames, prompt, audio_seconds, seconds, readings)
