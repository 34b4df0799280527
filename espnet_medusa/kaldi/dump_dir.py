"""ESPnet's `dump/raw` directories: their tables, and stage 4, which filters a training set."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.files.output_folder import fingerprint, staged_output
from espnet_medusa.kaldi.data_dir import make_spk2utt
from espnet_medusa.kaldi.table import DataError, DataProblem, read_table, sort_ids, write_table
from espnet_medusa.kaldi.utterances import EXTRA_TABLES
from espnet_medusa.options import option

DROPPED_UTTERANCES = "dropped_utterances"


@dataclass(frozen=True)
class DumpTables:
    """Tables keyed by utterance; an utterance may be missing in `extra_tables`."""

    wav_scp: Mapping[str, str]  # audio files, or offsets in arks
    utt2spk: Mapping[str, str]  # speakers
    text: Mapping[str, str]  # transcripts; empty if there are none
    utt2num_samples: Mapping[str, int]  # lengths; empty in a `data` directory
    audio_format: str = ""  # such as "flac.ark"; empty in a `data` directory
    extra_tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by name

    def select(self, ids: set[str]) -> "DumpTables":
        def keep(table: Mapping) -> dict:
            return {key: value for key, value in table.items() if key in ids}

        names = ("wav_scp", "utt2spk", "text", "utt2num_samples")
        tables = {name: keep(getattr(self, name)) for name in names}
        extra_tables = {name: keep(table) for name, table in self.extra_tables.items()}
        return dataclasses.replace(self, extra_tables=extra_tables, **tables)

    def with_text(self, text: Mapping[str, str]) -> "DumpTables":
        """Replace the transcripts and keep only the utterances that have one."""
        return dataclasses.replace(self.select({*text}), text=dict(text))

    def write(self, folder: Path) -> None:
        """Write all tables as ESPnet's stages 3 and 4 leave them."""
        lengths = {key: str(value) for key, value in self.utt2num_samples.items()}
        write_table(folder / "wav.scp", self.wav_scp)
        write_table(folder / "utt2spk", self.utt2spk)
        write_table(folder / "spk2utt", make_spk2utt(self.utt2spk))
        optional = {"text": self.text, "utt2num_samples": lengths, **self.extra_tables}
        for name, table in optional.items():
            if table:
                write_table(folder / name, table)
        if self.audio_format:
            write_atomically(folder / "feats_type", "raw\n")
            write_atomically(folder / "audio_format", f"{self.audio_format}\n")


def read_dump_dir(folder: str | Path) -> DumpTables:
    """Read `DumpTables`; raise DataError if a table is missing or damaged, or the ids differ."""
    folder = Path(folder)
    problems: list[DataProblem] = []
    tables: dict[str, dict[str, str]] = {}
    optional = [name for name in ("text", *EXTRA_TABLES) if (folder / name).exists()]
    for name in ("wav.scp", "utt2num_samples", "utt2spk", *optional):
        try:
            tables[name] = read_table(folder / name, require_value=name != "text")
        except DataError as error:
            problems += error.problems
    extra_tables = {name: tables.pop(name) for name in EXTRA_TABLES if name in tables}
    if not problems:
        problems = [
            DataProblem(str(folder / name), key, "is missing", "format the data again")
            for name, table in tables.items()
            for key in sort_ids(set().union(*tables.values()) - set(table))
        ]
        lengths_file = str(folder / "utt2num_samples")
        problems += [
            DataProblem(lengths_file, key, f"{value} is no number", "format again")
            for key, value in tables["utt2num_samples"].items()
            if re.fullmatch("[0-9]{1,18}", value) is None
        ]
    if problems:
        raise DataError(problems)
    lengths = {key: int(value) for key, value in tables["utt2num_samples"].items()}
    main = tables["wav.scp"], tables["utt2spk"], tables.get("text", {}), lengths
    return DumpTables(*main, _audio_format(folder), extra_tables)


def _audio_format(folder: Path) -> str:
    file = folder / "audio_format"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def sound_type(folder: Path) -> str:
    """Return ESPnet's data type of the wav.scp of a `dump/raw` directory."""
    return "kaldi_ark" if "ark" in _audio_format(folder) else "sound"


@dataclass(frozen=True)
class FilterOptions:
    """Selection of utterances; their duration must be between, not at, the limits, as in ESPnet."""

    min_wav_duration: float = option(0.1, "seconds")
    max_wav_duration: float = option(20.0, "seconds")
    fs: int = option(16000, "rate in Hz (16000, 16k)")
    drop_empty_text: bool = option(True, "whether to drop utterances without words")

    def __post_init__(self):
        if not 0 <= self.min_wav_duration < self.max_wav_duration:
            raise ValueError(
                "allowed: 0 <= min_wav_duration < max_wav_duration, not "
                f"{self.min_wav_duration} and {self.max_wav_duration} s"
            )


def filter_data_dir(
    input_dir: str | Path, output_dir: str | Path, options: FilterOptions
) -> tuple[int, dict[str, str]]:
    """Copy the tables, not the audio, of a `dump/raw` directory; drop utterances by `options`.

    Return the number of utterances kept, and the reasons for the others by id. Raise ValueError if
    a table is damaged, no utterance is left, or `output_dir` has other files.
    """
    tables = read_dump_dir(input_dir)
    dropped = _find_dropped(tables, options)
    remaining = set(tables.utt2num_samples) - set(dropped)
    if not remaining:
        key, reason = next(iter(dropped.items()))
        raise ValueError(
            f"{input_dir}: none of its {len(dropped)} utterances is left (such as {key}: {reason});"
            " change --min_wav_duration or --max_wav_duration, or correct --fs or text"
        )
    made_from = fingerprint([], [], dataclasses.asdict(options))
    with staged_output(output_dir, made_from) as staging:
        tables.select(remaining).write(staging)
        if dropped:
            write_table(staging / DROPPED_UTTERANCES, dropped)
    return len(remaining), dropped


def _find_dropped(tables: DumpTables, options: FilterOptions) -> dict[str, str]:
    dropped = {}
    for key, n_samples in tables.utt2num_samples.items():
        duration_s = n_samples / options.fs
        if n_samples <= int(options.min_wav_duration * options.fs):
            dropped[key] = f"too short: {duration_s:.2f} s"
        elif n_samples >= int(options.max_wav_duration * options.fs):
            dropped[key] = f"too long: {duration_s:.2f} s"
        elif options.drop_empty_text and tables.text and not tables.text[key]:
            dropped[key] = "empty text"
    return dropped
