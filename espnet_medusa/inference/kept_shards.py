"""What a frozen network gives of each utterance, kept shard by shard: interruptions cost little."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import kaldiio
import numpy as np
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.inference.batches import Utterance, decode_together, one_line
from espnet_medusa.inference.job import JobInput
from espnet_medusa.inference.progress import Progress
from espnet_medusa.kaldi.table import read_results, write_table

logger = logging.getLogger(__name__)

FAILED = "failed_utterances"
SHARD_UTTERANCES = 128  # what an interruption costs at most


@dataclass(frozen=True)
class Kept:
    """What is kept of one utterance.

    Attributes:
        archives: Name to (N, D) float16.
        lines: Name of a table to what stands behind the utterance there.
    """

    archives: Mapping[str, np.ndarray]
    lines: Mapping[str, str]


@dataclass(frozen=True)
class Shards:
    """Runs a network over audio and writes what it gives.

    Attributes:
        keep: Utterance ids and samples (samples,) of a batch to what is kept of them.
        archives: Names of what it gives: ``<name>.scp`` in the folder.
        tables: Likewise; files of that name.
    """

    keep: Callable[[Sequence[str], Sequence[np.ndarray]], list[Kept]]
    archives: tuple[str, ...]
    tables: tuple[str, ...] = ()

    def run(
        self, job: JobInput, read: Callable[[str], Utterance], folder: Path, batch_size: int
    ) -> dict[str, dict[str, str]]:
        """Keep what the network gives of all utterances; shards that are there stay.

        Args:
            job: Ids and audio.
            read: Id to audio; an error names what is wrong with this utterance alone.
            folder: To write archives, tables and ``failed_utterances`` into.
            batch_size: Utterances that run together.

        Returns:
            The tables by name, ``<archive>.scp`` and ``failed_utterances`` among them.

        Raises:
            InputError: None of the utterances could be run.
        """
        keys = [*job.keys]
        shards = [
            (folder / f"shard.{number}", keys[start : start + SHARD_UTTERANCES])
            for number, start in enumerate(range(0, len(keys), SHARD_UTTERANCES), 1)
        ]
        done = sum(len(names) for shard, names in shards if self._is_done(shard, names))
        with Progress(len(keys), done, "states") as progress:
            for shard, names in shards:
                if not self._is_done(shard, names):
                    self._keep_shard(job, read, shard, names, batch_size, progress)
        return self._join([shard for shard, _ in shards], folder)

    def _is_done(self, shard: Path, keys: Sequence[str]) -> bool:
        """Whether a shard accounts for these utterances; its list of failures came last."""
        if not (shard / FAILED).is_file():
            return False
        failed = read_results(shard / FAILED).keys()
        return all(
            {*read_results(shard / f"{name}.scp"), *failed} == {*keys} for name in self.archives
        )

    def _keep_shard(
        self,
        job: JobInput,
        read: Callable[[str], Utterance],
        shard: Path,
        keys: list[str],
        batch_size: int,
        progress: Progress,
    ) -> None:
        """Write one folder; its list of failures comes last."""
        shutil.rmtree(shard, ignore_errors=True)
        shard.mkdir(parents=True)
        failed: dict[str, str] = {}
        tables: dict[str, dict[str, str]] = {name: {} for name in self.tables}
        with ExitStack() as stack:
            archives = {name: stack.enter_context(_writer(shard, name)) for name in self.archives}
            for utterance, outcome in self._outcomes(job, read, keys, batch_size, failed):
                progress.update()
                if isinstance(outcome, Exception):
                    failed[utterance.key] = one_line(outcome)
                    continue
                for name, write in archives.items():
                    write(utterance.key, outcome.archives[name])
                for name, table in tables.items():
                    table[utterance.key] = outcome.lines[name]
        for name, table in tables.items():
            write_table(shard / name, table)
        for key, reason in failed.items():
            logger.error(f"failed: {key}: {reason}")
        write_table(shard / FAILED, failed)

    def _outcomes(
        self,
        job: JobInput,
        read: Callable[[str], Utterance],
        keys: Sequence[str],
        batch_size: int,
        failed: dict[str, str],
    ) -> Iterator[tuple[Utterance, Kept | Exception]]:
        """Read a shard and run it in batches of like lengths."""
        utterances = []
        for key in keys:
            try:
                if key in job.problems:
                    raise InputError(job.problems[key])
                utterances.append(read(key))
            except Exception as error:  # whatever it was, the others go on
                failed[key] = one_line(error)
        utterances.sort(key=lambda utterance: len(utterance.speech))
        for start in range(0, len(utterances), batch_size):
            batch = utterances[start : start + batch_size]
            names = {id(u.speech): u.key for u in batch}

            def keep(speeches, _, names=names):
                return self.keep([names[id(speech)] for speech in speeches], speeches)

            yield from decode_together(keep, batch)

    def _join(self, shards: Sequence[Path], folder: Path) -> dict[str, dict[str, str]]:
        """Write the tables of all shards together."""
        scripts = [f"{name}.scp" for name in self.archives]
        joined = {
            name: {
                key: value for shard in shards for key, value in read_results(shard / name).items()
            }
            for name in (*scripts, *self.tables, FAILED)
        }
        for name, table in joined.items():
            (folder / name).unlink(missing_ok=True)
            if table:
                write_table(folder / name, table)
        if not joined[scripts[0]]:
            raise InputError(
                f"{folder}: no utterance has {self.archives[0]}; {folder / FAILED} says why of "
                "each; remove the folder to try again"
            )
        return joined


def float16(rows: torch.Tensor) -> np.ndarray:
    """(N, D) as archives keep it."""
    return rows.half().cpu().numpy()


def _writer(shard: Path, name: str) -> kaldiio.WriteHelper:
    # As numpy's arrays: Kaldi's matrices know no float16.
    places = f"ark,scp:{shard}/{name}.ark,{shard}/{name}.scp"
    return kaldiio.WriteHelper(places, write_function="numpy")
