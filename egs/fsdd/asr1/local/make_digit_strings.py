"""Join clips of the Free Spoken Digit Dataset to digit strings: Kaldi data directories.

Writes ``<output_dir>/{train,dev,test}`` with wav.scp, text, utt2spk and spk2utt, and audio in
``<audio_dir>/{train,dev,test}``: 8 kHz as recorded, one speaker as stereo FLAC, the others as
mono WAV, so that the recipe resamples and mixes down. Paths in wav.scp start with ``--audio_dir``
as given; by default they are relative to the recipe's folder.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import soundfile
from fsdd_clips import SAMPLE_RATE_HZ, Clip, read_clips
from tqdm import tqdm

from espnet_medusa.data.kaldi.data_dir import make_spk2utt
from espnet_medusa.data.kaldi.table import write_table

DIGIT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Recordings 0 to 4 are the official test set.
SET_OF_INDEX = {**dict.fromkeys(range(5), "test"), **dict.fromkeys(range(5, 10), "dev")}
SETS = ("dev", "test", "train")
# Clips by speaker, then by digit.
ClipTable = dict[str, dict[int, list[Clip]]]
# Without a fade the edges of the tightly cut clips click.
FADE_S = 0.003
# Gain of the right channel; it differs from the left one, so that tests notice a dropped channel.
RIGHT_GAIN = 0.5


@dataclass(frozen=True)
class DigitStringOptions:
    """Options of the digit strings; each field is also a command-line option."""

    minutes: float = field(default=50.0, metadata={"help": "audio in the training set"})
    dev_utterances: int = field(default=60, metadata={"help": "utterances in the dev set"})
    test_utterances: int = field(default=120, metadata={"help": "utterances in the test set"})
    min_digits: int = field(default=3, metadata={"help": "digits in the shortest string"})
    max_digits: int = field(default=8, metadata={"help": "digits in the longest string"})
    min_pause_ms: float = field(default=50.0, metadata={"help": "shortest pause"})
    max_pause_ms: float = field(default=250.0, metadata={"help": "longest pause"})
    stereo_speaker: str = field(
        default="theo", metadata={"help": "speaker of stereo FLAC audio; empty: none"}
    )
    seed: int = field(default=0, metadata={"help": "seed of all random choices"})

    def __post_init__(self):
        for name in ("minutes", "dev_utterances", "test_utterances", "min_digits"):
            if getattr(self, name) <= 0:
                raise ValueError(f"--{name} {getattr(self, name)}: must be above 0")
        if self.min_pause_ms < 0:
            raise ValueError(f"--min_pause_ms {self.min_pause_ms}: must not be negative")
        for name in ("digits", "pause_ms"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low > high:
                raise ValueError(f"--min_{name} {low}: must not be above --max_{name} {high}")


def split_clips(clips: Sequence[Clip]) -> dict[str, ClipTable]:
    """Divide clips among the sets by their index, so that no recording is in two sets.

    Returns:
        The clips of each set.

    Raises:
        ValueError: a speaker lacks a digit in a set.
    """
    tables: dict[str, ClipTable] = {name: {} for name in SETS}
    speakers = sorted({clip.speaker for clip in clips})
    for clip in clips:
        of_speaker = tables[SET_OF_INDEX.get(clip.index, "train")].setdefault(clip.speaker, {})
        of_speaker.setdefault(clip.digit, []).append(clip)
    for name in SETS:
        for speaker in speakers:
            missing = sorted(set(range(10)) - set(tables[name].get(speaker, {})))
            if missing:
                raise ValueError(
                    f"speaker {speaker}: no clips of {missing} for the {name} set; indices 0-4 "
                    "are test, 5-9 dev, all others train: add the clips or leave the speaker out"
                )
    return tables


def join_clips(clips: Sequence[Clip], pauses_s: Sequence[float]) -> np.ndarray:
    """Join clips, with a pause before, between and after them.

    Args:
        pauses_s: pauses in seconds, one more than clips.

    Returns:
        Samples (float32, shape (N,)) at 8 kHz.
    """
    pauses = [np.zeros(round(s * SAMPLE_RATE_HZ), np.float32) for s in pauses_s]
    parts = [pauses[0]]
    for clip, pause in zip(clips, pauses[1:], strict=True):
        parts += [_fade(clip.samples), pause]
    return np.concatenate(parts)


def _fade(samples: np.ndarray) -> np.ndarray:
    """Ramp both ends up from and down to zero."""
    n_fade = min(round(FADE_S * SAMPLE_RATE_HZ), len(samples) // 2)
    gain = np.ones(len(samples), np.float32)
    gain[:n_fade] = np.linspace(0, 1, n_fade, endpoint=False)
    gain[len(gain) - n_fade :] = gain[:n_fade][::-1]
    return samples * gain


class SetWriter:
    """Makes and writes the utterances of one set.

    Args:
        name: ``train``, ``dev`` or ``test``.
        audio_dir: audio is written to ``<audio_dir>/<name>``.
        first_number: first number of the utterance ids ``<speaker>-<number>``.

    Attributes:
        duration_s: duration of all utterances so far.
    """

    def __init__(
        self,
        name: str,
        table: ClipTable,
        options: DigitStringOptions,
        audio_dir: Path,
        first_number: int,
    ):
        self.duration_s = 0.0
        self._first_number = first_number
        self._table = table
        self._options = options
        # Each set has its own generator, so that the size of one does not change another.
        self._generator = random.Random(f"{options.seed} {name}")
        self._audio_dir = audio_dir / name
        self._wav_scp: dict[str, str] = {}
        self._text: dict[str, str] = {}
        self._utt2spk: dict[str, str] = {}
        self._audio_dir.mkdir(parents=True, exist_ok=True)
        for path in (*self._audio_dir.glob("*.wav"), *self._audio_dir.glob("*.flac")):
            path.unlink()

    @property
    def n_utterances(self) -> int:
        """Number of utterances so far."""
        return len(self._text)

    def add_utterance(self) -> None:
        """Make an utterance with random speaker, digits, clips and pauses."""
        options, generator = self._options, self._generator
        speaker = generator.choice(sorted(self._table))
        n_digits = generator.randint(options.min_digits, options.max_digits)
        digits = [generator.randrange(10) for _ in range(n_digits)]
        clips = [generator.choice(self._table[speaker][digit]) for digit in digits]
        pause_s = (options.min_pause_ms / 1000, options.max_pause_ms / 1000)
        pauses_s = [generator.uniform(*pause_s) for _ in range(n_digits + 1)]
        samples = join_clips(clips, pauses_s)
        key = f"{speaker}-{self._first_number + self.n_utterances:05d}"
        self._wav_scp[key] = str(self._write(key, speaker, samples))
        self._text[key] = " ".join(DIGIT_WORDS[digit] for digit in digits)
        self._utt2spk[key] = speaker
        self.duration_s += len(samples) / SAMPLE_RATE_HZ

    def write_tables(self, directory: Path) -> None:
        """Write wav.scp, text, utt2spk and spk2utt."""
        write_table(directory / "text", self._text)
        write_table(directory / "utt2spk", self._utt2spk)
        write_table(directory / "spk2utt", make_spk2utt(self._utt2spk))
        write_table(directory / "wav.scp", self._wav_scp)

    def _write(self, key: str, speaker: str, samples: np.ndarray) -> Path:
        extension = ".wav"
        if speaker == self._options.stereo_speaker:
            extension = ".flac"
            samples = np.stack([samples, RIGHT_GAIN * samples], axis=1)
        path = self._audio_dir / f"{key}{extension}"
        soundfile.write(path, samples, SAMPLE_RATE_HZ, subtype="PCM_16")
        return path


def make_digit_strings(
    options: DigitStringOptions,
    fsdd_dir: Path,
    output_dir: Path,
    audio_dir: Path,
    speakers: tuple[str, ...] = (),
) -> None:
    tables = split_clips(read_clips(fsdd_dir, speakers))
    for name in SETS:
        # First, so that an interrupted run leaves no set that looks complete.
        (output_dir / name / "wav.scp").unlink(missing_ok=True)
    is_full: dict[str, Callable[[SetWriter], bool]] = {
        "dev": lambda writer: writer.n_utterances >= options.dev_utterances,
        "test": lambda writer: writer.n_utterances >= options.test_utterances,
        "train": lambda writer: writer.duration_s >= options.minutes * 60,
    }
    first_number = 0
    for name in SETS:
        writer = SetWriter(name, tables[name], options, audio_dir, first_number)
        interval_s = 0.2 if sys.stderr.isatty() else 10  # between updates of the progress bar
        with tqdm(desc=name, unit=" utterances", mininterval=interval_s) as progress:
            while not is_full[name](writer):
                writer.add_utterance()
                progress.update()
        writer.write_tables(output_dir / name)
        first_number += writer.n_utterances
        print(f"{name}: {writer.n_utterances} utterances, {writer.duration_s / 60:.1f} min")


def get_parser() -> argparse.ArgumentParser:
    """Build the parser: the fields of DigitStringOptions, and folders."""
    parser = argparse.ArgumentParser(
        description="Join clips of the Free Spoken Digit Dataset to digit strings.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--fsdd_dir",
        type=Path,
        required=True,
        help="folder with {speaker}.tar.gz or {digit}_{speaker}_{index}.wav",
    )
    parser.add_argument("--output_dir", type=Path, default=Path("data"), help="data directories")
    parser.add_argument("--audio_dir", type=Path, default=Path("downloads/fsdd"), help="audio")
    parser.add_argument("--speakers", nargs="*", default=[], help="speakers to use (none: all)")
    for option in fields(DigitStringOptions):
        parser.add_argument(
            f"--{option.name}",
            type=option.type,
            default=option.default,
            help=option.metadata["help"],
        )
    return parser


def main(cmd: list[str] | None = None) -> None:
    """Run the command line ``cmd`` (default: this process's)."""
    parser = get_parser()
    arguments = vars(parser.parse_args(cmd))
    arguments["speakers"] = tuple(arguments["speakers"])
    names = [option.name for option in fields(DigitStringOptions)]
    try:
        options = DigitStringOptions(**{name: arguments.pop(name) for name in names})
        make_digit_strings(options, **arguments)
    except (ValueError, OSError) as error:
        parser.exit(1, f"{parser.prog}: error: {error}\n")


if __name__ == "__main__":
    main()
