"""What heads need of a frozen Whisper, computed once and kept: its states over its own text.

Training of heads or CTC on them (``training.asr_model``) runs neither encoder nor decoder again.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.inference.batches import Utterance
from espnet_medusa.inference.job import JobInput, Preprocess, read_utterance
from espnet_medusa.inference.kept_shards import FAILED, Kept, Shards, float16
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.kaldi.table import write_table
from espnet_medusa.search.limits import LengthLimits

logger = logging.getLogger(__name__)

STATES, MEMORY, TEXT, TEXT_INT = "states", "memory", "text", "text_int"
COUNTS = "token_counts.pth"
TOKENS_PER_S = 5  # of speech, prompt and end included: for the estimate of disk space alone
FLOAT16_BYTES = 2


def bytes_needed(speech2text: Speech2Text, durations_s: Sequence[float], with_memory: bool) -> int:
    """Estimate the disk space that the states of utterances take.

    Args:
        speech2text: Of the whole model.
        durations_s: Of the utterances, in seconds.
        with_memory: Whether encoder outputs are kept, too.
    """
    encoder = speech2text.asr_model.encoder
    size = encoder.output_size() * FLOAT16_BYTES
    states = sum(durations_s) * TOKENS_PER_S * size
    positions = encoder.whisper.config.max_source_positions
    frames = [
        positions if encoder.pad_to_window else positions * duration_s / speech2text.window_s
        for duration_s in durations_s
    ]
    return int(states + with_memory * sum(frames) * size)


def check_space(folder: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises:
        InputError: With both sizes.
    """
    free = shutil.disk_usage(folder).free
    logger.info(f"{folder}: will take about {needed / 1e9:.2f} GB; {free / 1e9:.1f} GB are free")
    if needed > free:
        raise InputError(
            f"{folder}: about {needed / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free; name "
            "a folder on another disk, or fewer utterances"
        )


@dataclass(frozen=True)
class StateKeeper:
    """Runs the frozen model over audio.

    Attributes:
        speech2text: Of the whole model, whose search writes the texts.
        with_memory: Whether to keep the encoder's output, for heads with a block and CTC.
        references: Utterance to label (L,) and text, in place of what the model writes; None: that.
        preprocess: ESPnet's preprocessing function of audio, or None.
    """

    speech2text: Speech2Text
    with_memory: bool
    references: Mapping[str, tuple[list[int], str]] | None = None
    preprocess: Preprocess | None = None

    @torch.no_grad()
    def keep(self, keys: Sequence[str], speeches: Sequence[np.ndarray]) -> list[Kept]:
        """Of several utterances (samples,), together.

        Returns:
            Of each: ``states`` (L + 1, D), last hidden states of the decoder; ``memory`` (S, D), if
            it is kept; ``text``, what the model wrote or the reference; ``text_int``, its L ids,
            prompt included, without start and end.

        Raises:
            InputError: A text is longer than the decoder has positions for.
        """
        own, model = self.speech2text, self.speech2text.asr_model
        memory, frames = own.encode(own.batch(speeches))
        if self.references is None:
            labels, texts = self._write(memory, frames)
        else:
            labels, texts = zip(*(self.references[key] for key in keys), strict=True)
        longest = max(map(len, labels))
        if longest >= model.decoder.max_depth(int(frames.max())):
            raise InputError(
                f"a text of {longest} tokens; the decoder has positions for "
                f"{model.decoder.max_depth(int(frames.max())) - 1}: leave the utterance out"
            )
        tokens = torch.full((len(labels), longest + 1), model.eos, device=memory.device)
        for row, label in enumerate(labels):
            tokens[row, : len(label) + 1] = torch.tensor([model.sos, *label])
        hidden = model.decoder.hidden_states(memory, frames, tokens).hidden
        found = []
        for row, (label, text) in enumerate(zip(labels, texts, strict=True)):
            archives = {STATES: float16(hidden[row, : len(label) + 1])}
            if self.with_memory:
                archives[MEMORY] = float16(memory[row, : frames[row]])
            found.append(Kept(archives, {TEXT: text, TEXT_INT: " ".join(map(str, label))}))
        return found

    def _write(
        self, memory: torch.Tensor, frames: torch.Tensor
    ) -> tuple[list[list[int]], list[str]]:
        """Labels and texts as the search writes them."""
        own = self.speech2text
        prompt = own.prompts(memory, frames, [None] * len(memory))
        limits = LengthLimits(own.maxlenratio, own.minlenratio)
        walks = own.search(memory, frames, prompt, limits)
        labels, texts = [], []
        for walk, (start, *rest) in zip(walks, prompt.tolist(), strict=True):
            if not walk.n_best:
                raise InputError("no hypothesis ended; leave the utterance out")
            found = own.writer.write(walk, [start, *rest], own.search.strategy.scoring.names)
            labels.append([*rest, *walk.n_best[0].tokens[:-1]])
            texts.append(found.results[0][0] or "")
        return labels, texts

    def run(self, job: JobInput, folder: Path, batch_size: int) -> int:
        """Keep the states of all utterances, shard by shard; shards that are there stay.

        Args:
            job: Ids and audio.
            folder: To write into: ``states.scp``, ``memory.scp``, ``text``, ``text_int``, shapes,
                ``token_counts.pth``, ``failed_utterances``.
            batch_size: Utterances that run together.

        Returns:
            Number of utterances without states.
        """
        archives = (STATES, MEMORY) if self.with_memory else (STATES,)
        shards = Shards(self.keep, archives, (TEXT, TEXT_INT))
        tables = shards.run(job, self._read(job), folder, batch_size)
        model = self.speech2text.asr_model
        write_lengths(tables[TEXT_INT], folder, len(model.token_list), model.eos)
        return len(tables[FAILED])

    def _read(self, job: JobInput) -> Callable[[str], Utterance]:
        def read(key: str) -> Utterance:
            if self.references is not None and key not in self.references:
                raise InputError("no reference text")
            return read_utterance(self.speech2text, key, job.entries[key], False, self.preprocess)

        return read


def write_lengths(labels: Mapping[str, str], folder: Path, vocab_size: int, eos: int) -> None:
    """Write what training reads beside the tables: shapes, and how often each token occurs.

    Args:
        labels: Utterance to its ids, with spaces between.
        folder: To write into.
        vocab_size: V.
        eos: Which is counted once for each utterance.
    """
    lengths = {key: len(label.split()) for key, label in labels.items()}
    write_table(folder / "speech_shape", {key: str(n + 1) for key, n in lengths.items()})
    write_table(folder / "text_shape", {key: str(n) for key, n in lengths.items()})
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for label in labels.values():
        ids = torch.tensor([*map(int, label.split()), eos])
        counts += torch.bincount(ids, minlength=vocab_size)
    torch.save({"decoder.token_counts": counts}, folder / COUNTS)
