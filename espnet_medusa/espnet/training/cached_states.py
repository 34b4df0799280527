"""Cached texts and hidden states of a frozen Whisper for its training audio.

Training of heads and CTC reads states and encoder output instead of running encoder and decoder
(``training.asr_model``). The texts are also labels for training Whisper itself.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from espnet_medusa.data.encoder_rows import row_counts
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import naming
from espnet_medusa.data.kaldi.dump_dir import DROPPED_UTTERANCES
from espnet_medusa.data.kaldi.table import write_table
from espnet_medusa.espnet.training.cached_shards import EVERY, FAILED, Cached, Shards, float16
from espnet_medusa.espnet.training.label_filter import FilterOptions, WrittenText, dropped_texts
from espnet_medusa.inference.batches import Utterance
from espnet_medusa.inference.job import JobInput
from espnet_medusa.inference.reader import Preprocess, UtteranceReader
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.masks import inside
from espnet_medusa.networks.merged_padding import GROUP

logger = logging.getLogger(__name__)

STATES, MEMORY, TEXT, TEXT_INT = "states", "memory", "text", "text_int"
FRAMES = "memory_frames"  # of each row of memory, if padding is merged
UNPADDED = "unpadded"  # memory without padded frames
TABLES = (TEXT, TEXT_INT)
COUNTS = "token_counts.pth"
TOKENS_PER_S = 5  # of audio, with prompt and end; an estimate
FLOAT16_BYTES = 2


def bytes_needed(
    speech2text: Speech2Text, durations_s: Sequence[float], archives: Sequence[str]
) -> int:
    """Estimate the bytes on disk of archives for utterances of these durations in seconds."""
    encoder = speech2text.asr_model.encoder
    positions = encoder.whisper.config.max_source_positions
    unpadded = positions / speech2text.model.audio.window_s * sum(durations_s)
    memory = positions * len(durations_s) if encoder.feature_kind.padded else unpadded
    if FRAMES in archives:
        memory = unpadded + memory / GROUP
    tokens = TOKENS_PER_S * sum(durations_s)
    vectors = {STATES: tokens, MEMORY: memory, FRAMES: 0, UNPADDED: unpadded}
    return int(sum(vectors[name] for name in archives) * encoder.output_size() * FLOAT16_BYTES)


def check_space(folder: Path, needed: int) -> None:
    """Raise InputError if the disk has less than ``needed`` free bytes."""
    free = shutil.disk_usage(folder).free
    logger.info(f"{folder}: will take about {needed / 1e9:.2f} GB; {free / 1e9:.1f} GB are free")
    if needed > free:
        raise InputError(
            f"{folder}: about {needed / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free; name "
            "a folder on another disk, or fewer utterances"
        )


@dataclass(frozen=True)
class StateCache:
    """Runs a frozen Whisper over audio and caches its texts, states and encoder output."""

    speech2text: Speech2Text  # the model; its search writes the texts
    archives: tuple[str, ...]  # what to cache: ``STATES``, ``MEMORY``, ``FRAMES``, ``UNPADDED``
    # Utterance to label (L,) and text, instead of the model's; None: the model's.
    references: Mapping[str, tuple[list[int], str]] | None = None
    preprocess: Preprocess | None = None  # ESPnet's preprocessing of audio
    filter_options: FilterOptions = FilterOptions()  # for the model's texts

    @torch.no_grad()
    def compute(self, utterances: Sequence[Utterance]) -> list[Cached | Exception]:
        """Return the output for each utterance of a batch; an error for one with too long a text.

        Archives: ``states`` (L + 1, D), the decoder's last hidden states; ``memory`` (S, D), the
        encoder output; ``memory_frames`` (S,), the number of frames of each of its rows;
        ``unpadded``, encoder output without padded frames. Tables: ``text``, and ``text_int``, its
        L ids with the prompt but without start and end.
        """
        own = self.speech2text.model
        audio = own.batch([utterance.speech for utterance in utterances])
        memory, frames = own.encode(audio)
        if self.references is None:
            languages = [utterance.language for utterance in utterances]
            labels, texts = self._write(memory, frames, languages)
        else:
            pairs = (self.references[utterance.key] for utterance in utterances)
            labels, texts = zip(*pairs, strict=True)
        rows: dict[str, list[torch.Tensor]] = {}
        longest = self.speech2text.asr_model.decoder.max_depth(int(frames.max())) - 1
        if STATES in self.archives:
            fitting = [label[:longest] for label in labels]
            states = zip(self._states(memory, frames, fitting), fitting, strict=True)
            rows[STATES] = [hidden[: len(label) + 1] for hidden, label in states]
        if MEMORY in self.archives:
            counts = enumerate(row_counts(frames).tolist())
            rows[MEMORY] = [memory[row, :count] for row, count in counts]
        if FRAMES in self.archives:
            sizes = frames if frames.dim() == 2 else inside(memory, frames)
            rows[FRAMES] = [row[row > 0] for row in sizes]
        if UNPADDED in self.archives:
            rows[UNPADDED] = own.encoder.unpadded(memory, frames, audio.lengths)
        outputs: list[Cached | Exception] = []
        for place, (text, label) in enumerate(zip(texts, labels, strict=True)):
            if STATES in self.archives and len(label) > longest:
                reason = f"a text of {len(label)} tokens; the decoder has positions for {longest}"
                outputs.append(InputError(f"{reason}: remove the utterance"))
                continue
            archives = {name: float16(part[place]) for name, part in rows.items()}
            outputs.append({**archives, TEXT: text, TEXT_INT: " ".join(map(str, label))})
        return outputs

    def _states(
        self, memory: torch.Tensor, frames: torch.Tensor, labels: Sequence[list[int]]
    ) -> torch.Tensor:
        """Return states (U, longest L + 1, D) of labels of L tokens each."""
        model, longest = self.speech2text.asr_model, max(map(len, labels))
        tokens = torch.full((len(labels), longest + 1), model.eos, device=memory.device)
        for row, label in enumerate(labels):
            tokens[row, : len(label) + 1] = torch.tensor([model.sos, *label])
        return model.decoder.hidden_states(memory, frames, tokens).hidden

    def _write(
        self, memory: torch.Tensor, frames: torch.Tensor, languages: Sequence[str | None]
    ) -> tuple[list[list[int]], list[str]]:
        """Return labels and texts (with single spaces) of the search."""
        own = self.speech2text.model
        prompt = own.make_prompts(memory, frames, languages)
        states = own.search(memory, frames, prompt, own.limits)
        labels, texts = [], []
        for state, (start, *rest) in zip(states, prompt.tolist(), strict=True):
            if not state.n_best:
                raise InputError("no hypothesis ended; remove the utterance")
            decoding = own.writer.write(state, [start, *rest], own.search.strategy.scoring.names)
            labels.append([*rest, *state.n_best[0].tokens[:-1]])
            texts.append(" ".join((decoding.results[0][0] or "").split()))
        return labels, texts

    def run(self, job: JobInput, folder: Path, batch_size: int, share: slice = EVERY) -> None:
        """Cache the output for the shards in ``share``, as ``Shards.run``."""
        reader = UtteranceReader(self.speech2text.model.audio, self.preprocess)

        def read(key: str) -> Utterance:
            if self.references is not None and key not in self.references:
                raise InputError("no reference text")
            utterance = reader.read(key, job.entries[key], reader.limits.window_s)
            return replace(utterance, language=job.languages.get(key))

        Shards(job, folder, self.archives, TABLES).run(read, self.compute, batch_size, share)

    def join(self, job: JobInput, folder: Path, durations_s: Mapping[str, float]) -> Counter[str]:
        """Write the joined tables of all shards and the other files that training reads.

        ``folder`` gets an ``.scp`` file per archive, ``text``, ``text_int``, shapes,
        ``token_counts.pth``, ``failed_utterances``, ``dropped_utterances``. Return the numbers of
        failed and dropped utterances by reason. Raise InputError if none is left.
        """
        # All archives: an earlier call may have cached more.
        shards = Shards(job, folder, (STATES, MEMORY, FRAMES, UNPADDED), TABLES)
        tables, failed = shards.joined()
        model, dropped = self.speech2text.asr_model, {}
        if self.references is None:
            last = model.decoder.max_depth(0) - 1
            written = {
                key: WrittenText(text, durations_s[key], len(tables[TEXT_INT][key].split()) < last)
                for key, text in tables[TEXT].items()
            }
            dropped = dropped_texts(written, self.filter_options)
        remaining = {
            name: {key: value for key, value in table.items() if key not in dropped}
            for name, table in tables.items()
        }
        shards.write_joined(remaining, {FAILED: failed, DROPPED_UTTERANCES: dropped})
        write_counts(folder, remaining[TEXT_INT], len(model.token_list), model.eos)
        counts = Counter(reason.split(":")[0] for reason in dropped.values())
        return counts + Counter({FAILED: len(failed)})


def write_counts(folder: Path, labels: Mapping[str, str], vocab_size: int, eos: int) -> None:
    """Write shape files, and the number of occurrences of each token in labels (ids as text)."""
    lengths = {key: len(label.split()) for key, label in labels.items()}
    write_table(folder / "speech_shape", {key: str(n + 1) for key, n in lengths.items()})
    write_table(folder / "text_shape", {key: str(n) for key, n in lengths.items()})
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for label in labels.values():
        ids = torch.tensor([*map(int, label.split()), eos])
        counts += torch.bincount(ids, minlength=vocab_size)
    with naming(folder / COUNTS):
        torch.save({"decoder.token_counts": counts}, folder / COUNTS)
