"""What a Whisper writes for its training audio, and its states over that text, computed once.

Training of heads or CTC on the states (``training.asr_model``) runs neither encoder nor decoder
again. The texts alone are labels for what trains Whisper itself.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import kaldiio
import numpy as np
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.inference.batches import Utterance, decode_together, one_line
from espnet_medusa.inference.job import JobInput, Preprocess, read_utterance
from espnet_medusa.inference.progress import Progress
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.unfit_texts import UnfitOptions, WrittenText, unfit_texts
from espnet_medusa.kaldi.filter import DROPPED_UTTERANCES
from espnet_medusa.kaldi.table import read_results, write_table
from espnet_medusa.search.limits import LengthLimits

logger = logging.getLogger(__name__)

STATES, MEMORY, TEXT, TEXT_INT = "states", "memory", "text", "text_int"
FAILED = "failed_utterances"
COUNTS = "token_counts.pth"
SHARD_UTTERANCES = 128  # what an interruption costs at most
TOKENS_PER_S = 5  # of speech, prompt and end included: for the estimate of disk space alone
FLOAT16_BYTES = 2
EVERY = slice(None)


@dataclass(frozen=True)
class Kept:
    """What is kept of one utterance.

    Attributes:
        label: (L,) ids, prompt included, without start and end.
        text: What the model wrote, or the reference.
        states: (L + 1, D) float16, last hidden states of the decoder; None: they are not kept.
        memory: (S, D) float16 encoder output, likewise.
    """

    label: list[int]
    text: str
    states: np.ndarray | None
    memory: np.ndarray | None


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
        with_states: Whether to keep anything but texts.
        unfit: Which written texts are left out.
    """

    speech2text: Speech2Text
    with_memory: bool
    references: Mapping[str, tuple[list[int], str]] | None = None
    preprocess: Preprocess | None = None
    with_states: bool = True
    unfit: UnfitOptions = UnfitOptions()

    @torch.no_grad()
    def keep(
        self, keys: Sequence[str], speeches: Sequence[np.ndarray], languages: Sequence[str | None]
    ) -> list[Kept]:
        """Of several utterances (samples,) in languages of their own (None: the model's), together.

        Raises:
            InputError: A text is longer than the decoder has positions for.
        """
        own, model = self.speech2text, self.speech2text.asr_model
        memory, frames = own.encode(own.batch(speeches))
        if self.references is None:
            labels, texts = self._write(memory, frames, languages)
        else:
            labels, texts = zip(*(self.references[key] for key in keys), strict=True)
        if not self.with_states:
            return [Kept(*written, None, None) for written in zip(labels, texts, strict=True)]
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
        return [
            Kept(
                list(label),
                text,
                _float16(hidden[row, : len(label) + 1]),
                _float16(memory[row, : frames[row]]) if self.with_memory else None,
            )
            for row, (label, text) in enumerate(zip(labels, texts, strict=True))
        ]

    def _write(
        self, memory: torch.Tensor, frames: torch.Tensor, languages: Sequence[str | None]
    ) -> tuple[list[list[int]], list[str]]:
        """Labels, and texts with single spaces, as the search writes them."""
        own = self.speech2text
        prompt = own.prompts(memory, frames, languages)
        limits = LengthLimits(own.maxlenratio, own.minlenratio)
        walks = own.search(memory, frames, prompt, limits)
        labels, texts = [], []
        for walk, (start, *rest) in zip(walks, prompt.tolist(), strict=True):
            if not walk.n_best:
                raise InputError("no hypothesis ended; leave the utterance out")
            found = own.writer.write(walk, [start, *rest], own.search.strategy.scoring.names)
            labels.append([*rest, *walk.n_best[0].tokens[:-1]])
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
        shards = _shards(job, folder)[share]
        total = sum(len(names) for _, names in shards)
        done = sum(len(names) for shard, names in shards if self._is_done(shard, names))
        with Progress(total, done, "states") as progress:
            for shard, names in shards:
                if not self._is_done(shard, names):
                    self._keep_shard(job, shard, names, batch_size, progress)

    def join(self, job: JobInput, folder: Path, durations_s: Mapping[str, float]) -> Counter[str]:
        """Write the tables of all shards together, and what training reads beside them.

        Args:
            job: As ``run`` had it.
            folder: Gets ``states.scp``, ``memory.scp``, ``text``, ``text_int``, shapes,
                ``token_counts.pth``, ``failed_utterances``, ``dropped_utterances``.
            durations_s: Of the utterances, in seconds.

        Returns:
            How many utterances have no result (``failed_utterances``), and how many were dropped
            for which reason.

        Raises:
            InputError: No utterance is left.
        """
        shards = [shard for shard, _ in _shards(job, folder)]
        names = [f"{STATES}.scp", f"{MEMORY}.scp", TEXT, TEXT_INT]
        tables = {name: _joined(shards, name) for name in names}
        failed = _joined(shards, FAILED)
        dropped = {} if self.references is not None else self._unfit(tables, durations_s)
        kept = {
            name: {key: value for key, value in table.items() if key not in dropped}
            for name, table in tables.items()
        }
        for name, table in (kept | {FAILED: failed, DROPPED_UTTERANCES: dropped}).items():
            (folder / name).unlink(missing_ok=True)
            if table:
                write_table(folder / name, table)
        if not kept[TEXT_INT]:
            raise InputError(
                f"{folder}: no utterance has states; {FAILED} and {DROPPED_UTTERANCES} there say "
                "why of each; remove the folder to try again"
            )
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

    def _is_done(self, shard: Path, keys: Sequence[str]) -> bool:
        """Whether a shard accounts for these utterances; its list of failures came last."""
        if not (shard / FAILED).is_file():
            return False
        kept = read_results(shard / TEXT_INT).keys()
        for name, wanted in ((STATES, self.with_states), (MEMORY, self.with_memory)):
            if wanted and kept != read_results(shard / f"{name}.scp").keys():
                return False
        return {*kept, *read_results(shard / FAILED)} == {*keys}

    def _keep_shard(
        self, job: JobInput, shard: Path, keys: list[str], batch_size: int, progress: Progress
    ) -> None:
        """Write one folder; its list of failures comes last."""
        shutil.rmtree(shard, ignore_errors=True)
        shard.mkdir(parents=True)
        failed: dict[str, str] = {}
        labels: dict[str, str] = {}
        texts: dict[str, str] = {}
        with _writer(shard, STATES) as states, _writer(shard, MEMORY) as memory:
            for utterance, outcome in self._outcomes(job, keys, batch_size, failed):
                progress.update()
                if isinstance(outcome, Exception):
                    failed[utterance.key] = one_line(outcome)
                    continue
                if outcome.states is not None:
                    states(utterance.key, outcome.states)
                if outcome.memory is not None:
                    memory(utterance.key, outcome.memory)
                labels[utterance.key] = " ".join(map(str, outcome.label))
                texts[utterance.key] = outcome.text
        write_table(shard / TEXT_INT, labels)
        write_table(shard / TEXT, texts)
        for key, reason in failed.items():
            logger.error(f"failed: {key}: {reason}")
        write_table(shard / FAILED, failed)

    def _outcomes(
        self, job: JobInput, keys: Sequence[str], batch_size: int, failed: dict[str, str]
    ) -> Iterator[tuple[Utterance, Kept | Exception]]:
        """Read a shard and run it in batches of like lengths."""
        utterances = []
        for key in keys:
            try:
                if key in job.problems:
                    raise InputError(job.problems[key])
                if self.references is not None and key not in self.references:
                    raise InputError("no reference text")
                entry = job.entries[key]
                read = read_utterance(self.speech2text, key, entry, False, self.preprocess)
                utterances.append(replace(read, language=job.languages.get(key)))
            except Exception as error:  # whatever it was, the others go on
                failed[key] = one_line(error)
        utterances.sort(key=lambda utterance: len(utterance.speech))
        for start in range(0, len(utterances), batch_size):
            batch = utterances[start : start + batch_size]
            names = {id(u.speech): u.key for u in batch}

            def keep(speeches, languages, names=names):
                keys = [names[id(speech)] for speech in speeches]
                return self.keep(keys, speeches, languages)

            yield from decode_together(keep, batch)


def _shards(job: JobInput, folder: Path) -> list[tuple[Path, list[str]]]:
    """Folder and utterances of each."""
    return [
        (folder / f"shard.{number}", job.keys[start : start + SHARD_UTTERANCES])
        for number, start in enumerate(range(0, len(job.keys), SHARD_UTTERANCES), 1)
    ]


def _joined(shards: Sequence[Path], name: str) -> dict[str, str]:
    return {key: value for shard in shards for key, value in read_results(shard / name).items()}


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
    torch.save({"decoder.token_counts": counts}, folder / COUNTS)


def _float16(rows: torch.Tensor) -> np.ndarray:
    return rows.half().cpu().numpy()


def _writer(shard: Path, name: str) -> kaldiio.WriteHelper:
    # As numpy's arrays: Kaldi's matrices know no float16.
    places = f"ark,scp:{shard}/{name}.ark,{shard}/{name}.scp"
    return kaldiio.WriteHelper(places, write_function="numpy")
