"""What a Whisper writes for its training audio, and its states over that text, computed once.

Training of heads or CTC on the states (``training.asr_model``) runs neither encoder nor decoder
again. The texts alone are labels for what trains Whisper itself.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.files.atomic import naming
from espnet_medusa.inference.batches import Utterance
from espnet_medusa.inference.draft_material import unpadded_frames
from espnet_medusa.inference.job import JobInput
from espnet_medusa.inference.reader import Preprocess, UtteranceReader
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.kaldi.dump_dir import DROPPED_UTTERANCES
from espnet_medusa.kaldi.table import write_table
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.training.cached_shards import EVERY, FAILED, Cached, Shards, float16
from espnet_medusa.training.label_filter import UnfitOptions, WrittenText, unfit_texts

logger = logging.getLogger(__name__)

STATES, MEMORY, TEXT, TEXT_INT = "states", "memory", "text", "text_int"
UNPADDED = "unpadded"  # memory without the silence that fills the window
TABLES = (TEXT, TEXT_INT)
COUNTS = "token_counts.pth"
TOKENS_PER_S = 5  # of speech, prompt and end included: for the estimate of disk space alone
FLOAT16_BYTES = 2


def bytes_needed(
    speech2text: Speech2Text, durations_s: Sequence[float], archives: Sequence[str]
) -> int:
    """Estimate the disk space that what is kept of utterances takes.

    Args:
        speech2text: Of the whole model.
        durations_s: Of the utterances, in seconds.
        archives: What is kept.
    """
    encoder = speech2text.asr_model.encoder
    positions = encoder.whisper.config.max_source_positions
    unpadded = positions / speech2text.window_s * sum(durations_s)
    whole = positions * len(durations_s) if encoder.feature_kind.padded else unpadded
    vectors = {STATES: TOKENS_PER_S * sum(durations_s), MEMORY: whole, UNPADDED: unpadded}
    return int(sum(vectors[name] for name in archives) * encoder.output_size() * FLOAT16_BYTES)


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
        archives: What is kept beside texts: ``states``, and ``memory``, the encoder's output, for
            heads with a block and CTC.
        references: Utterance to label (L,) and text, in place of what the model writes; None: that.
        preprocess: ESPnet's preprocessing function of audio, or None.
        unfit: Which written texts are left out.
    """

    speech2text: Speech2Text
    archives: tuple[str, ...]
    references: Mapping[str, tuple[list[int], str]] | None = None
    preprocess: Preprocess | None = None
    unfit: UnfitOptions = UnfitOptions()

    @torch.no_grad()
    def keep(self, utterances: Sequence[Utterance]) -> list[Cached]:
        """Of several utterances in languages of their own (None: the model's), together.

        Returns:
            Of each: ``states`` (L + 1, D), last hidden states of the decoder, and ``memory``
            (S, D), whole or as ``unpadded``, where they are kept; ``text``, what the model wrote or
            the reference; ``text_int``, its L ids, prompt included, without start and end.

        Raises:
            InputError: A text is longer than the decoder has positions for.
        """
        own = self.speech2text
        audio = own.batch([utterance.speech for utterance in utterances])
        memory, frames = own.encode(audio)
        if self.references is None:
            languages = [utterance.language for utterance in utterances]
            labels, texts = self._write(memory, frames, languages)
        else:
            written = (self.references[utterance.key] for utterance in utterances)
            labels, texts = zip(*written, strict=True)
        archives: list[dict[str, np.ndarray]] = [{} for _ in utterances]
        if STATES in self.archives:
            hidden = self._states(memory, frames, labels)
            for row, label in enumerate(labels):
                archives[row][STATES] = float16(hidden[row, : len(label) + 1])
        if MEMORY in self.archives:
            for row, length in enumerate(frames.tolist()):
                archives[row][MEMORY] = float16(memory[row, :length])
        if UNPADDED in self.archives:
            for row, unpadded in enumerate(unpadded_frames(own, audio, memory, frames)):
                archives[row][UNPADDED] = float16(unpadded)
        return [
            Cached(found, {TEXT: text, TEXT_INT: " ".join(map(str, label))})
            for found, text, label in zip(archives, texts, labels, strict=True)
        ]

    def _states(
        self, memory: torch.Tensor, frames: torch.Tensor, labels: Sequence[list[int]]
    ) -> torch.Tensor:
        """States (U, longest L + 1, D) over labels of L tokens each."""
        model = self.speech2text.asr_model
        longest = max(map(len, labels))
        if longest >= model.decoder.max_depth(int(frames.max())):
            raise InputError(
                f"a text of {longest} tokens; the decoder has positions for "
                f"{model.decoder.max_depth(int(frames.max())) - 1}: leave the utterance out"
            )
        tokens = torch.full((len(labels), longest + 1), model.eos, device=memory.device)
        for row, label in enumerate(labels):
            tokens[row, : len(label) + 1] = torch.tensor([model.sos, *label])
        return model.decoder.hidden_states(memory, frames, tokens).hidden

    def _write(
        self, memory: torch.Tensor, frames: torch.Tensor, languages: Sequence[str | None]
    ) -> tuple[list[list[int]], list[str]]:
        """Labels, and texts with single spaces, as the search writes them."""
        own = self.speech2text
        prompt = own.prompts(memory, frames, languages)
        limits = LengthLimits(own.maxlenratio, own.minlenratio)
        search_states = own.search(memory, frames, prompt, limits)
        labels, texts = [], []
        for search_state, (start, *rest) in zip(search_states, prompt.tolist(), strict=True):
            if not search_state.n_best:
                raise InputError("no hypothesis ended; leave the utterance out")
            found = own.writer.write(
                search_state, [start, *rest], own.search.strategy.scoring.names
            )
            labels.append([*rest, *search_state.n_best[0].tokens[:-1]])
            texts.append(" ".join((found.results[0][0] or "").split()))
        return labels, texts

    def run(self, job: JobInput, folder: Path, batch_size: int, share: slice = EVERY) -> None:
        """Keep the states of all utterances, shard by shard; shards that are there stay.

        Args:
            job: Ids and audio.
            folder: To write shards into.
            batch_size: Utterances that run together.
            share: Of the shards, where other processes do the others.
        """
        shards = Shards(job, folder, self.archives, TABLES)
        shards.run(self._read(job), self.keep, batch_size, share)

    def _read(self, job: JobInput) -> Callable[[str], Utterance]:
        speech2text = self.speech2text
        reader = UtteranceReader.for_model(
            speech2text.asr_model, speech2text.asr_train_args, self.preprocess
        )

        def read(key: str) -> Utterance:
            if self.references is not None and key not in self.references:
                raise InputError("no reference text")
            utterance = reader.read(key, job.entries[key], reader.window_s)
            return replace(utterance, language=job.languages.get(key))

        return read

    def join(self, job: JobInput, folder: Path, durations_s: Mapping[str, float]) -> Counter[str]:
        """Write the tables of all shards together, and what training reads beside them.

        Args:
            job: As ``run`` had it.
            folder: Gets ``states.scp``, ``memory.scp``, ``unpadded.scp``, ``text``, ``text_int``,
                shapes, ``token_counts.pth``, ``failed_utterances``, ``dropped_utterances``.
            durations_s: Of the utterances, in seconds.

        Returns:
            How many utterances have no result (``failed_utterances``), and how many were dropped
            for which reason.

        Raises:
            InputError: No utterance is left.
        """
        # An earlier call may have kept more.
        shards = Shards(job, folder, (STATES, MEMORY, UNPADDED), TABLES)
        tables, failed = shards.joined()
        dropped = {} if self.references is not None else self._unfit(tables, durations_s)
        kept = {
            name: {key: value for key, value in table.items() if key not in dropped}
            for name, table in tables.items()
        }
        shards.write_joined(kept, {FAILED: failed, DROPPED_UTTERANCES: dropped})
        model = self.speech2text.asr_model
        write_counts(folder, kept[TEXT_INT], len(model.token_list), model.eos)
        counts = Counter(reason.split(":")[0] for reason in dropped.values())
        return counts + Counter({FAILED: len(failed)})

    def _unfit(
        self, tables: Mapping[str, Mapping[str, str]], durations_s: Mapping[str, float]
    ) -> dict[str, str]:
        """Written texts that are not learned, with the reason."""
        last = self.speech2text.asr_model.decoder.max_depth(0) - 1
        written = {
            key: WrittenText(text, durations_s[key], len(tables[TEXT_INT][key].split()) < last)
            for key, text in tables[TEXT].items()
        }
        return unfit_texts(written, self.unfit)


def write_counts(folder: Path, labels: Mapping[str, str], vocab_size: int, eos: int) -> None:
    """Write shape files of states and labels, and how often each token is learned.

    Args:
        folder: To write to.
        labels: Utterance to token ids, as a line.
        vocab_size: Tokens V of the model.
        eos: Its end, once in each text.
    """
    lengths = {key: len(label.split()) for key, label in labels.items()}
    write_table(folder / "speech_shape", {key: str(n + 1) for key, n in lengths.items()})
    write_table(folder / "text_shape", {key: str(n) for key, n in lengths.items()})
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for label in labels.values():
        ids = torch.tensor([*map(int, label.split()), eos])
        counts += torch.bincount(ids, minlength=vocab_size)
    with naming(folder / COUNTS):
        torch.save({"decoder.token_counts": counts}, folder / COUNTS)
