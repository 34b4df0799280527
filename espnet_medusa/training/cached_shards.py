"""What a frozen network gives of each utterance, kept shard by shard: interruptions cost little."""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import kaldiio
import numpy as np
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.files.atomic import naming
from espnet_medusa.inference.batches import Utterance, decode_together, one_line
from espnet_medusa.inference.job import JobInput
from espnet_medusa.inference.progress import Progress
from espnet_medusa.kaldi.table import read_results, write_table

logger = logging.getLogger(__name__)

FAILED = "failed_utterances"
SHARD_UTTERANCES = 128  # what an interruption costs at most
EVERY = slice(None)

Table = Mapping[str, str]


@dataclass(frozen=True)
class Cached:
    """What is kept of one utterance.

    Attributes:
        archives: Name to (N, D) float16.
        lines: Name of a table to what stands behind the utterance there.
    """

    archives: Mapping[str, np.ndarray]
    lines: Mapping[str, str]


Read = Callable[[str], Utterance]
Keep = Callable[[Sequence[Utterance]], list[Cached]]


@dataclass(frozen=True)
class Shards:
    """The utterances of a job in folders, each written as a whole or anew.

    Attributes:
        job: Ids and audio.
        folder: Of the shards, and of their tables joined.
        archives: Names of what is kept: ``<name>.scp`` of each shard.
        tables: Likewise; files of that name.
    """

    job: JobInput
    folder: Path
    archives: tuple[str, ...]
    tables: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """What is kept, above all."""
        return (*self.archives, *self.tables)[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Files that tell of each utterance what is kept."""
        return (*(f"{name}.scp" for name in self.archives), *self.tables)

    def run(self, read: Read, keep: Keep, batch_size: int, share: slice = EVERY) -> None:
        """Write the shards; those that are there stay.

        Args:
            read: Id to audio; an error says what is wrong with this utterance alone.
            keep: A batch to what is kept of each of it.
            batch_size: Utterances that run together.
            share: Of the shards, where other processes do the others.
        """
        shards = self._shards()[share]
        done = [shard for shard, keys in shards if self._is_done(shard, keys)]
        count = sum(len(keys) for shard, keys in shards if shard in done)
        total = sum(len(keys) for _, keys in shards)
        with Progress(total, count, self.what) as progress:
            for shard, keys in shards:
                if shard not in done:
                    outcomes = _outcomes(self.job, keys, read, keep, batch_size)
                    self._write_shard(shard, outcomes, progress)

    def joined(self) -> tuple[dict[str, Table], Table]:
        """Of all shards together: the tables by name, and which utterances failed, and why."""
        shards = [shard for shard, _ in self._shards()]
        *tables, failed = (
            {key: value for shard in shards for key, value in read_results(shard / name).items()}
            for name in (*self.names, FAILED)
        )
        return dict(zip(self.names, tables, strict=True)), failed

    def write_joined(self, tables: Mapping[str, Table], left_out: Mapping[str, Table]) -> None:
        """Write tables of all shards; an empty one is no file.

        Args:
            tables: By name, as ``joined`` gives them.
            left_out: Name of a file to the utterances that are not in the tables, and why.

        Raises:
            InputError: All are left out.
        """
        for name, table in {**tables, **left_out}.items():
            (self.folder / name).unlink(missing_ok=True)
            if table:
                write_table(self.folder / name, table)
        if not any(tables.values()):
            reasons = " and ".join(name for name, table in left_out.items() if table)
            raise InputError(
                f"{self.folder}: no utterance has {self.what}; {reasons} there: why of each; "
                "remove the folder to try again"
            )

    def _shards(self) -> list[tuple[Path, list[str]]]:
        """Folder and utterances of each."""
        keys = self.job.keys
        return [
            (self.folder / f"shard.{number}", keys[start : start + SHARD_UTTERANCES])
            for number, start in enumerate(range(0, len(keys), SHARD_UTTERANCES), 1)
        ]

    def _is_done(self, shard: Path, keys: Sequence[str]) -> bool:
        """Whether a shard accounts for these utterances; its list of failures came last."""
        if not (shard / FAILED).is_file():
            return False
        failed = read_results(shard / FAILED)
        return all({*read_results(shard / name), *failed} == {*keys} for name in self.names)

    def _write_shard(
        self, shard: Path, outcomes: Iterable[tuple[str, Cached | Exception]], progress: Progress
    ) -> None:
        """Write one folder; its list of failures comes last."""
        shutil.rmtree(shard, ignore_errors=True)
        shard.mkdir(parents=True)
        failed: dict[str, str] = {}
        tables: dict[str, dict[str, str]] = {name: {} for name in self.tables}
        with naming(shard), ExitStack() as stack:
            archives = {name: stack.enter_context(_writer(shard, name)) for name in self.archives}
            for key, outcome in outcomes:
                progress.update()
                if isinstance(outcome, Exception):
                    failed[key] = one_line(outcome)
                    logger.error(f"failed: {key}: {failed[key]}")
                    continue
                for name, write in archives.items():
                    write(key, outcome.archives[name])
                for name, table in tables.items():
                    table[key] = outcome.lines[name]
        for name, table in tables.items():
            write_table(shard / name, table)
        write_table(shard / FAILED, failed)


def _outcomes(
    job: JobInput, keys: Sequence[str], read: Read, keep: Keep, batch_size: int
) -> Iterator[tuple[str, Cached | Exception]]:
    """Read a shard and run it in batches of like lengths."""
    utterances = []
    for key in keys:
        try:
            if key in job.problems:
                raise InputError(job.problems[key])
            utterances.append(read(key))
        except Exception as error:  # whatever it was, the others go on
            yield key, error
    utterances.sort(key=lambda utterance: len(utterance.speech))
    for start in range(0, len(utterances), batch_size):
        batch = utterances[start : start + batch_size]
        whose = {id(utterance.speech): utterance for utterance in batch}

        def keep_some(speeches, _, whose=whose):
            return keep([whose[id(speech)] for speech in speeches])

        for utterance, outcome in decode_together(keep_some, batch):
            yield utterance.key, outcome


def float16(rows: torch.Tensor) -> np.ndarray:
    """(N, D) as archives keep it."""
    return rows.half().cpu().numpy()


def _writer(shard: Path, name: str) -> kaldiio.WriteHelper:
    # As numpy's arrays: Kaldi's matrices know no float16.
    places = f"ark,scp:{shard}/{name}.ark,{shard}/{name}.scp"
    return kaldiio.WriteHelper(places, write_function="numpy")
