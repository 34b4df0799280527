"""Held-out utterances, read and encoded once for all settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from espnet_medusa.decoding.batches import Utterance, make_batches
from espnet_medusa.decoding.job import JobInput, Preprocess, read_utterance
from espnet_medusa.draft.surrogate import DraftInput
from espnet_medusa.errors import InputError
from espnet_medusa.search.beam import LengthLimits
from espnet_medusa.search.build import search_within
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
        draft_inputs: U, what a draft model reads; None where none drafts.
    """

    keys: list[str]
    memory: torch.Tensor
    frames: torch.Tensor
    prompt: torch.Tensor
    audio_seconds: float
    encoder_seconds: float
    draft_inputs: list[DraftInput] | None = None

    def decode(self, search: Any, limits: LengthLimits) -> list[Walk]:
        """Run a greedy or a beam search."""
        inputs = self.memory, self.frames, self.prompt
        return search_within(search, *inputs, limits, self.draft_inputs)


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
) -> list[HeldOutBatch]:
    """Encode in batches as a decoding job makes them."""
    lengths = [utterance.frames for utterance in utterances]
    batches = []
    for indices in tqdm(
        make_batches(lengths, batch_size, max_batch_frames), desc="encoding", unit="batch"
    ):
        members = [utterances[index] for index in indices]
        speeches = [utterance.speech for utterance in members]
        if not batches:  # the first pass of a process also sets up libraries
            speech2text.encode(speech2text.batch(speeches))
        started = clock.now()
        audio = speech2text.batch(speeches)
        memory, frames = speech2text.encode(audio)
        seconds = clock.now() - started
        prompt = speech2text.prompts(memory, frames, [member.language for member in members])
        draft_inputs = speech2text.draft_inputs(audio, prompt)
        audio_seconds = sum(map(len, speeches)) / speech2text.sample_rate_hz
        keys = [utterance.key for utterance in members]
        costs = audio_seconds, seconds
        batches.append(HeldOutBatch(keys, memory, frames, prompt, *costs, draft_inputs))
    return batches
