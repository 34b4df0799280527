"""A cache of a frozen network's output per utterance, written in shards so that runs can resume."""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kaldiio
import numpy as np
import torch
import yaml

from espnet_medusa.data.errors import InputError, one_line
from espnet_medusa.data.files.atomic import naming, write_atomically
from espnet_medusa.data.kaldi.table import read_results, write_table
from espnet_medusa.data.options import read_yaml
from espnet_medusa.data.progress import Progress
from espnet_medusa.inference.batches import Utterance, describe
from espnet_medusa.inference.job import JobInput
from espnet_medusa.inference.smaller_batches import run_batch

logger = logging.getLogger(__name__)

FAILED = "failed_utterances"
SOURCES = "sources"  # of a shard: ``JobInput.source`` of each utterance
SHARD_UTTERANCES = 128  # an interrupted run loses at most one shard
EVERY = slice(None)

Table = Mapping[str, str]
# An utterance's output: (N, D) or (N,) float16 by name of the archive, text by name of the table.
Cached = Mapping[str, np.ndarray | str]
Read = Callable[[str], Utterance]
Compute = Callable[[Sequence[Utterance]], Sequence[Cached | Exception]]


@dataclass(frozen=True)
class Shards:
    """A folder with the cached output of a job's utterances, in a subfolder per shard."""

    job: JobInput
    folder: Path  # contains the shards and their joined tables
    archives: tuple[str, ...]  # names of each shard's archives, ``<name>.scp``
    tables: tuple[str, ...] = ()  # names of each shard's text tables

    @property
    def names(self) -> tuple[str, ...]:
        """Names of a shard's files, which have a line per utterance."""
        return (*(f"{name}.scp" for name in self.archives), *self.tables)

    def run(self, read: Read, compute: Compute, batch_size: int, share: slice = EVERY) -> None:
        """Write the incomplete shards in ``share``, without utterances that cannot be read.

        The utterances of complete shards that failed in an earlier call are tried again.
        """
        shards = self._shards()[share]
        remaining = {shard: self._remaining(shard, keys) for shard, keys in shards}
        total, left = (
            sum(map(len, parts)) for parts in (dict(shards).values(), remaining.values())
        )
        with Progress(total, total - left, (*self.archives, *self.tables)[0]) as progress:
            for shard, keys in shards:
                if todo := remaining[shard]:
                    if todo == keys:
                        shutil.rmtree(shard, ignore_errors=True)
                    computed = _outcomes(self.job, todo, read, compute, batch_size)
                    self._write_shard(shard, self._sources(keys), computed, progress)

    def joined(self) -> tuple[dict[str, Table], Table]:
        """Return the joined tables of all shards, and the failed utterances with reasons."""
        shards = [shard for shard, _ in self._shards()]
        *tables, failed = (
            {key: value for shard in shards for key, value in read_results(shard / name).items()}
            for name in (*self.names, FAILED)
        )
        return dict(zip(self.names, tables, strict=True)), failed

    def write_joined(self, tables: Mapping[str, Table], left_out: Mapping[str, Table]) -> None:
        """Write the tables of ``joined`` and those of ``left_out``, which have reasons.

        Empty tables are not written. Raise InputError if no utterance is left.
        """
        for name, table in {**tables, **left_out}.items():
            (self.folder / name).unlink(missing_ok=True)
            if table:
                write_table(self.folder / name, table)
        if not any(tables.values()):
            reasons = " and ".join(name for name, table in left_out.items() if table)
            raise InputError(
                f"{self.folder}: no utterance is in {self.names[0]}; the reasons are in {reasons}; "
                "correct the data, then run the command again"
            )

    def _shards(self) -> list[tuple[Path, list[str]]]:
        keys = self.job.keys
        return [
            (self.folder / f"shard.{number}", keys[start : start + SHARD_UTTERANCES])
            for number, start in enumerate(range(0, len(keys), SHARD_UTTERANCES), 1)
        ]

    def _remaining(self, shard: Path, keys: list[str]) -> list[str]:
        """Return those that failed; all if a shard is incomplete or its audio has changed."""
        # Failures are written last.
        if not (shard / FAILED).is_file() or read_results(shard / SOURCES) != self._sources(keys):
            return keys
        failed = read_results(shard / FAILED)
        complete = all({*read_results(shard / name), *failed} == {*keys} for name in self.names)
        return [key for key in keys if key in failed] if complete else keys

    def _sources(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: " ".join(self.job.source(key).split()) for key in keys}

    def _write_shard(
        self,
        shard: Path,
        sources: Mapping[str, str],
        computed: Iterable[tuple[str, Cached | Exception]],
        progress: Progress,
    ) -> None:
        """Add outcomes to a new or complete shard, which is incomplete meanwhile."""
        shard.mkdir(parents=True, exist_ok=True)
        (shard / FAILED).unlink(missing_ok=True)
        write_table(shard / SOURCES, sources)
        failed: dict[str, str] = {}
        tables = {name: read_results(shard / name) for name in self.tables}
        with naming(shard):
            for key, outcome in computed:
                progress.update()
                if isinstance(outcome, Exception):
                    failed[key] = one_line(outcome)
                    logger.error(f"failed: {key}: {failed[key]}")
                    continue
                for name in self.archives:
                    ark, scp = (f"{shard}/{name}.{kind}" for kind in ("ark", "scp"))
                    # NumPy's format: Kaldi matrices have no float16.
                    kaldiio.save_ark(ark, {key: outcome[name]}, scp, True, write_function="numpy")
                for name, table in tables.items():
                    table[key] = outcome[name]
        for name, table in tables.items():
            write_table(shard / name, table)
        write_table(shard / FAILED, failed)


def check_same_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a cache, or raise InputError if the file has other ones."""
    if not path.is_file():
        write_atomically(path, yaml.safe_dump(dict(settings)))
        return
    old = read_yaml(path, "remove the folder")
    old = old if isinstance(old, Mapping) else {}
    if names := [name for name in {**settings, **old} if old.get(name) != settings.get(name)]:
        raise InputError(
            f"{path.parent}: was written with another encoder or other settings "
            f"({', '.join(names)}), see {path}; name another folder, or remove this one"
        )


def _outcomes(
    job: JobInput, keys: Sequence[str], read: Read, compute: Compute, batch_size: int
) -> Iterator[tuple[str, Cached | Exception]]:
    """Read the utterances of a shard and compute their outputs in batches of similar lengths."""
    utterances = []
    for key in keys:
        try:
            if key in job.problems:
                raise InputError(job.problems[key])
            utterances.append(read(key))
        except Exception as error:  # one bad utterance does not stop the others
            yield key, error
    utterances.sort(key=lambda utterance: len(utterance.speech))
    for start in range(0, len(utterances), batch_size):
        batch = utterances[start : start + batch_size]
        for utterance, outcome in run_batch(compute, batch, describe):
            yield utterance.key, outcome


def float16(rows: torch.Tensor) -> np.ndarray:
    """Convert rows (N, D) or (N,) for an archive."""
    return rows.half().cpu().numpy()
