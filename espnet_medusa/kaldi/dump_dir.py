"""The tables of an ESPnet `dump/raw` directory, written and read back."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.kaldi.data_dir import make_spk2utt
from espnet_medusa.kaldi.problem import DataProblem
from espnet_medusa.kaldi.table import TableError, read_table, sort_ids, write_table
from espnet_medusa.kaldi.utterances import NOTES

FEATS_TYPE = "raw"


@dataclass(frozen=True)
class DumpTables:
    """Tables keyed by utterance.

    Attributes:
        wav_scp: Where the audio is.
        utt2spk: Speakers.
        text: Transcripts; empty if there are none.
        utt2num_samples: Lengths; empty in a `data` directory.
        audio_format: Such as "flac.ark"; empty in a `data` directory.
        notes: Tables of `NOTES` by name; an utterance may be missing in them.
    """

    wav_scp: Mapping[str, str]
    utt2spk: Mapping[str, str]
    text: Mapping[str, str]
    utt2num_samples: Mapping[str, int]
    audio_format: str = ""
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def select(self, ids: set[str]) -> "DumpTables":
        """Keep some utterances."""

        def keep(table: Mapping) -> dict:
            return {key: value for key, value in table.items() if key in ids}

        return replace(
            self,
            wav_scp=keep(self.wav_scp),
            utt2spk=keep(self.utt2spk),
            text=keep(self.text),
            utt2num_samples=keep(self.utt2num_samples),
            notes={name: keep(table) for name, table in self.notes.items()},
        )

    def with_text(self, text: Mapping[str, str]) -> "DumpTables":
        """Keep the utterances of other transcripts, and these."""
        return replace(self.select({*text}), text=dict(text))

    def write(self, folder: Path) -> None:
        """Write all tables as ESPnet's stages 3 and 4 leave them."""
        write_table(folder / "wav.scp", self.wav_scp)
        write_table(folder / "utt2spk", self.utt2spk)
        write_table(folder / "spk2utt", make_spk2utt(self.utt2spk))
        if self.text:
            write_table(folder / "text", self.text)
        if self.utt2num_samples:
            lengths = {key: str(value) for key, value in self.utt2num_samples.items()}
            write_table(folder / "utt2num_samples", lengths)
        for name, table in self.notes.items():
            if table:
                write_table(folder / name, table)
        if self.audio_format:
            write_atomically(folder / "feats_type", f"{FEATS_TYPE}\n")
            write_atomically(folder / "audio_format", f"{self.audio_format}\n")


def read_dump_dir(folder: str | Path) -> DumpTables:
    """Read what `DumpTables.write` wrote.

    Raises:
        TableError: A table is missing or damaged, or the tables' ids differ.
    """
    folder = Path(folder)
    problems: list[DataProblem] = []
    tables: dict[str, dict[str, str]] = {}
    notes: dict[str, dict[str, str]] = {}
    names = ["wav.scp", "utt2num_samples", "utt2spk"]
    names += ["text"] if (folder / "text").exists() else []
    found = [name for name in NOTES if (folder / name).exists()]
    for name in (*names, *found):
        try:
            table = read_table(folder / name, require_value=name != "text")
        except TableError as error:
            problems += error.problems
        else:
            (notes if name in NOTES else tables)[name] = table
    if not problems:
        problems = [
            DataProblem(str(folder / name), key, "is missing", "format the data again")
            for name, table in tables.items()
            for key in sort_ids(set().union(*tables.values()) - set(table))
        ]
        problems += [
            DataProblem(
                str(folder / "utt2num_samples"), key, f"{value} is no number", "format again"
            )
            for key, value in tables["utt2num_samples"].items()
            if re.fullmatch("[0-9]{1,18}", value) is None
        ]
    if problems:
        raise TableError(problems)
    format_file = folder / "audio_format"
    return DumpTables(
        wav_scp=tables["wav.scp"],
        utt2spk=tables["utt2spk"],
        text=tables.get("text", {}),
        utt2num_samples={key: int(value) for key, value in tables["utt2num_samples"].items()},
        audio_format=format_file.read_text(encoding="utf-8").strip()
        if format_file.exists()
        else "",
        notes=notes,
    )


def sound_type(folder: Path) -> str:
    """ESPnet's name for how the audio of a `dump/raw` directory is stored."""
    kind = folder / "audio_format"  # stage 3 writes it
    in_archives = kind.is_file() and "ark" in kind.read_text(encoding="utf-8")
    return "kaldi_ark" if in_archives else "sound"
