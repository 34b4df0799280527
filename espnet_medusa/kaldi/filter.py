"""ESPnet's stage 4: drop training utterances that are too long, too short or have no text."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.kaldi.dump_dir import DumpTables, read_dump_dir
from espnet_medusa.kaldi.output_dir import fingerprint, staged_output
from espnet_medusa.kaldi.table import write_table

DROPPED_UTTERANCES = "dropped_utterances"


@dataclass(frozen=True)
class FilterOptions:
    """What to keep.

    Attributes:
        min_wav_duration: In seconds; this and shorter is dropped, as in ESPnet.
        max_wav_duration: In seconds; this and longer is dropped, as in ESPnet.
        fs: Sample rate of the audio in Hz.
        drop_empty_text: Whether utterances without words are dropped.
    """

    min_wav_duration: float = 0.1
    max_wav_duration: float = 20.0
    fs: int = 16000
    drop_empty_text: bool = True

    def __post_init__(self):
        if not 0 <= self.min_wav_duration < self.max_wav_duration:
            raise ValueError(
                f"max_wav_duration must be above min_wav_duration, not {self.max_wav_duration}"
                f" and {self.min_wav_duration} s"
            )


def find_dropped(tables: DumpTables, options: FilterOptions) -> dict[str, str]:
    """Give the reason for each utterance that does not stay."""
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


def filter_data_dir(
    input_dir: str | Path, output_dir: str | Path, options: FilterOptions
) -> tuple[int, dict[str, str]]:
    """Copy the tables of a `dump/raw` directory without some utterances.

    Args:
        input_dir: What stage 3 wrote; the audio stays there.
        output_dir: Written as a whole or not at all.
        options: What to keep.

    Returns:
        Number of utterances kept, and id to reason for the others, which
        `dropped_utterances` lists too.

    Raises:
        ValueError: A table is damaged, nothing would be left, or `output_dir` holds other files.
    """
    tables = read_dump_dir(input_dir)
    dropped = find_dropped(tables, options)
    kept = set(tables.utt2num_samples) - set(dropped)
    if not kept:
        key, reason = next(iter(dropped.items()))
        raise ValueError(
            f"{input_dir}: none of its {len(dropped)} utterances is left (such as {key}: {reason});"
            " change --min_wav_duration or --max_wav_duration, or correct --fs or text"
        )
    made_from = fingerprint([], [], dataclasses.asdict(options))
    with staged_output(output_dir, made_from) as staging:
        tables.select(kept).write(staging)
        if dropped:
            write_table(staging / DROPPED_UTTERANCES, dropped)
    return len(kept), dropped
