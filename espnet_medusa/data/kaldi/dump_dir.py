"""ESPnet's `dump/raw` directories: their tables, and stage 4, which filters a training set."""

import dataclasses
import math
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.files.output_folder import check_output_dir, digest_of_inputs, staged_output
from espnet_medusa.data.kaldi.data_dir import make_spk2utt
from espnet_medusa.data.kaldi.table import DataError, DataProblem, read_table, sort_ids, write_table
from espnet_medusa.data.kaldi.utterances import EXTRA_TABLES
from espnet_medusa.data.options import option

DROPPED_UTTERANCES = "dropped_utterances"
Tables = Mapping[str, Mapping[str, str]]  # values by file name and utterance


def select_ids(tables: Tables, ids: Container[str]) -> dict[str, dict[str, str]]:
    return {
        name: {key: value for key, value in table.items() if key in ids}
        for name, table in tables.items()
    }


def write_dump_dir(folder: Path, tables: Tables, audio_format: str = "") -> None:
    """Write the tables that are not empty, and spk2utt, as ESPnet's stages 3 and 4 leave them.

    ``audio_format`` is such as "flac.ark"; empty in a `data` directory.
    """
    for name, table in {**tables, "spk2utt": make_spk2utt(tables["utt2spk"])}.items():
        if table:
            write_table(folder / name, table)
    if audio_format:
        write_atomically(folder / "feats_type", "raw\n")
        write_atomically(folder / "audio_format", f"{audio_format}\n")


def read_dump_dir(folder: str | Path) -> dict[str, dict[str, str]]:
    """Read wav.scp, utt2spk, utt2num_samples, and text and `EXTRA_TABLES` if they exist.

    Raise DataError if a table is missing or damaged, or ids differ; `EXTRA_TABLES` may lack ids.
    """
    folder = Path(folder)
    problems: list[DataProblem] = []
    tables: dict[str, dict[str, str]] = {}
    optional = [name for name in ("text", *EXTRA_TABLES) if (folder / name).exists()]
    for name in ("wav.scp", "utt2num_samples", "utt2spk", *optional):
        try:
            tables[name] = read_table(folder / name, require_value=name != "text")
        except DataError as error:
            problems += error.problems
    if not problems:
        complete = {name: table for name, table in tables.items() if name not in EXTRA_TABLES}
        problems = [
            DataProblem(str(folder / name), key, "is missing", "format the data again")
            for name, table in complete.items()
            for key in sort_ids(set().union(*complete.values()) - set(table))
        ]
        lengths_file = str(folder / "utt2num_samples")
        problems += [
            DataProblem(lengths_file, key, f"{value} is no number", "format again")
            for key, value in tables["utt2num_samples"].items()
            if re.fullmatch("[0-9]{1,18}", value) is None
        ]
    if problems:
        raise DataError(problems)
    return tables


def read_audio_format(folder: Path) -> str:
    file = folder / "audio_format"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


@dataclass(frozen=True)
class FilterOptions:
    """Selection of utterances; their duration must be between, not at, the limits, as in ESPnet."""

    min_wav_duration: float = option(0.1, "seconds")
    max_wav_duration: float = option(20.0, "seconds")
    fs: int = option(16000, "rate in Hz (16000, 16k)")
    drop_empty_text: bool = option(True, "whether to drop utterances without words")

    def __post_init__(self):
        if not 0 <= self.min_wav_duration < self.max_wav_duration < math.inf:
            raise ValueError(
                "allowed: 0 <= min_wav_duration < max_wav_duration, not "
                f"{self.min_wav_duration} and {self.max_wav_duration} s"
            )


def filter_data_dir(
    input_dir: str | Path, output_dir: str | Path, options: FilterOptions
) -> tuple[int, dict[str, str]]:
    """Copy the tables, not the audio, of a `dump/raw` directory; drop utterances by `options`.

    Return the number of utterances kept, and the reasons for the others by id. Raise ValueError if
    a table is damaged, no utterance is left, `output_dir` is or contains `input_dir`, or
    ``staged_output`` raises it.
    """
    check_output_dir(output_dir, [input_dir])
    tables = read_dump_dir(input_dir)
    dropped = {}
    texts = tables.get("text")
    for key, value in tables["utt2num_samples"].items():
        n_samples = int(value)
        duration_s = n_samples / options.fs
        if n_samples <= int(options.min_wav_duration * options.fs):
            dropped[key] = f"too short: {duration_s:.2f} s"
        elif n_samples >= int(options.max_wav_duration * options.fs):
            dropped[key] = f"too long: {duration_s:.2f} s"
        elif options.drop_empty_text and texts and not texts[key]:
            dropped[key] = "empty text"
    remaining = tables["utt2num_samples"].keys() - dropped.keys()
    if not remaining:
        key, reason = next(iter(dropped.items()))
        raise ValueError(
            f"{input_dir}: none of its {len(dropped)} utterances is left (such as {key}: {reason});"
            " change --min_wav_duration or --max_wav_duration, or correct --fs or text"
        )
    made_from = digest_of_inputs([], [], dataclasses.asdict(options))
    with staged_output(output_dir, made_from) as staging:
        write_dump_dir(staging, select_ids(tables, remaining), read_audio_format(Path(input_dir)))
        if dropped:
            write_table(staging / DROPPED_UTTERANCES, dropped)
    return len(remaining), dropped
