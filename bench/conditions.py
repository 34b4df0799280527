"""Make data directories of speech in hard conditions: noise, telephone, far microphone, pauses.

    python bench/conditions.py OUT --test_clean DIR --train_clean DIR --accented DIR --digits DIR

Each condition becomes OUT/CONDITION with ``wav.scp``, ``text`` and any new audio. --test_clean and
--train_clean are folders of LibriSpeech, --accented is a Kaldi data directory (speechocean762's
``train``, with its ``WAVE`` next to it), --digits has the files of the Free Spoken Digit Dataset.
The same corpora and --seed make the same samples. The reference of ``no_speech_*`` is [silence].
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import fftconvolve, resample_poly
from tqdm import tqdm

from espnet_medusa.data.command_line import positive, run_main
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import read_table, write_table

RATE_HZ, TELEPHONE_HZ = 16000, 8000
SNRS_DB = (20, 10, 5, 0)
TALKERS = 5  # people in babble
REVERBERATION_S, DIRECT_DB = 0.6, 0.0  # time to -60 dB; direct sound relative to the reverberation
FIRST_REFLECTION_S = 0.004
PAUSES_S = (5, 20)
ROOM_TONE_DB = -66  # RMS of pauses, relative to full scale
NO_SPEECH_DB = (-50, -35, -20)
NO_SPEECH_S = 4.0, 12.0
SILENCE = "[silence]"  # reference without words: tables have no empty values
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Samples = np.ndarray
Random = np.random.Generator


@dataclass(frozen=True)
class Clip:
    """A recording and its reference text."""

    id: str
    path: Path
    text: str

    def read(self) -> Samples:
        """Return the samples (N,) in [-1, 1], which must have 16 kHz."""
        samples, rate_hz = soundfile.read(self.path)
        if rate_hz != RATE_HZ:
            raise InputError(f"{self.path}: {rate_hz} Hz; allowed: {RATE_HZ}")
        return samples


# Corpora


def librispeech(folder: Path) -> list[Clip]:
    """List the utterances of a folder of LibriSpeech."""
    lines = [
        (transcripts.parent, line.partition(" "))
        for transcripts in sorted(folder.rglob("*.trans.txt"))
        for line in transcripts.read_text(encoding="utf-8").splitlines()
    ]
    return [Clip(key, parent / f"{key}.flac", text) for parent, (key, _, text) in lines]


def kaldi_clips(folder: Path) -> list[Clip]:
    """List the utterances of a data directory, whose paths are relative to its parent."""
    texts = read_table(folder / "text")
    entries = read_table(folder / "wav.scp")
    return [Clip(key, folder.parent / entries[key], text) for key, text in texts.items()]


def digits(folder: Path) -> list[Clip]:
    """List recordings of single words, ``DIGIT_SPEAKER_INDEX.wav``."""
    paths = sorted(folder.rglob("[0-9]_*.wav"))
    return [Clip(path.stem, path, DIGITS[int(path.stem[0])]) for path in paths]


# Sounds


def rms(samples: Samples) -> float:
    """Return the root mean square, above 0."""
    return max(float(np.sqrt(np.mean(np.square(samples)))), 1e-9)


def amplitude(level_db: float) -> float:
    """Convert a level in dB to a factor for amplitudes."""
    return 10 ** (level_db / 20)


def white_noise(count: int, rng: Random) -> Samples:
    """Return noise (count,) with equal power at all frequencies."""
    return rng.standard_normal(count)


def pink_noise(count: int, rng: Random) -> Samples:
    """Return noise (count,) whose power falls with 1 / frequency."""
    spectrum = np.fft.rfft(rng.standard_normal(count))
    return np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 1)), count)


def silence(count: int, rng: Random) -> Samples:
    """Return zeros (count,)."""
    return np.zeros(count)


def hum(count: int, rng: Random) -> Samples:
    """Return mains hum (count,) of 50 or 60 Hz with harmonics."""
    time_s = np.arange(count) / RATE_HZ
    base_hz = rng.choice([50, 60])
    return sum(np.sin(2 * np.pi * base_hz * n * time_s) / n for n in (1, 2, 3, 5))


def clicks(count: int, rng: Random) -> Samples:
    """Return (count,) samples with clicks of some milliseconds."""
    audio, length = 1e-3 * rng.standard_normal(count), 200
    for start in rng.integers(0, count - length, rng.integers(5, 30)):
        decay = np.exp(-np.arange(length) / 30)
        audio[start : start + length] += rng.standard_normal(length) * decay
    return audio


def tones(count: int, rng: Random) -> Samples:
    """Return music (count,) of simple tones: two at a time, decaying."""
    time_s, audio = np.arange(count) / RATE_HZ, np.zeros(count)
    for start_s in np.arange(0, time_s[-1], rng.uniform(0.2, 0.6)):
        since_s = np.maximum(time_s - start_s, 0)
        for semitone in rng.choice([0, 2, 4, 7, 9, 12, 16], 2, replace=False):
            tone_hz = 220 * 2 ** (semitone / 12)
            audio += np.exp(-4 * since_s) * np.sin(2 * np.pi * tone_hz * since_s)
    return audio


SOUNDS = {
    "silence": silence, "white": white_noise, "pink": pink_noise, "hum": hum, "clicks": clicks,
    "tones": tones,
}  # fmt: skip


def no_speech(sound: Callable[[int, Random], Samples], level_db: float, rng: Random) -> Samples:
    """Return 4 to 12 s of a sound; the level is its RMS relative to full scale."""
    audio = sound(round(rng.uniform(*NO_SPEECH_S) * RATE_HZ), rng)
    return np.clip(audio * amplitude(level_db) / rms(audio), -1, 1)


# Effects on speech: functions of samples, random numbers and the talkers of babble


def unclipped(samples: Samples) -> Samples:
    """Return samples, scaled down if they exceed [-1, 1]."""
    return samples / max(np.abs(samples).max(), 1.0)


def add_noise(speech: Samples, noise: Samples, snr_db: float) -> Samples:
    """Add noise at a signal-to-noise ratio."""
    return unclipped(speech + noise * (rms(speech) / rms(noise) / amplitude(snr_db)))


def add_pink(speech: Samples, rng: Random, talkers: Sequence[Clip], snr_db: float) -> Samples:
    return add_noise(speech, pink_noise(len(speech), rng), snr_db)


def add_babble(speech: Samples, rng: Random, talkers: Sequence[Clip], snr_db: float) -> Samples:
    """Add several equally loud talkers."""
    noise = np.zeros(len(speech))
    for index in rng.choice(len(talkers), TALKERS, replace=False):
        other = talkers[index].read()
        other = np.resize(np.roll(other, rng.integers(len(other))), len(speech))
        noise += other / rms(other)
    return add_noise(speech, noise, snr_db)


def in_room(speech: Samples, rng: Random, talkers: Sequence[Clip]) -> Samples:
    """Return speech at a far microphone: direct sound, and reflections as decaying noise."""
    count = round(REVERBERATION_S * RATE_HZ)
    response = rng.standard_normal(count) * amplitude(-60 * np.arange(count) / count)
    response[: round(FIRST_REFLECTION_S * RATE_HZ)] = 0
    response[0] = amplitude(DIRECT_DB) * np.sqrt(np.square(response).sum())
    wet = fftconvolve(speech, response)[: len(speech)]
    return unclipped(wet * rms(speech) / rms(wet))


def telephone(speech: Samples, rng: Random, talkers: Sequence[Clip]) -> Samples:
    """Resample speech to 8 kHz; ``write_data_dir`` writes it in G.711 (µ-law)."""
    return unclipped(resample_poly(speech, TELEPHONE_HZ, RATE_HZ))


EFFECTS = {
    **{f"babble_{snr_db}db": partial(add_babble, snr_db=snr_db) for snr_db in SNRS_DB},
    **{f"pink_{snr_db}db": partial(add_pink, snr_db=snr_db) for snr_db in SNRS_DB},
    "telephone": telephone,
    "far": in_room,
}


# Data directories


def write_data_dir(folder: Path, utterances: Iterable[tuple[str, Samples | Path, str]]) -> None:
    """Write a data directory.

    Args:
        utterances: Id, audio and text. Samples are written as FLAC, or as µ-law at 8 kHz for
            telephone; the audio at a path is not copied.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, texts = {}, {}
    for key, audio, text in utterances:
        if isinstance(audio, Path):
            path = audio
        elif folder.name == "telephone":
            path = folder / f"{key}.wav"
            soundfile.write(path, audio, TELEPHONE_HZ, subtype="ULAW")
        else:
            path = folder / f"{key}.flac"
            soundfile.write(path, audio, RATE_HZ)
        paths[key], texts[key] = str(path.resolve()), text
    write_table(folder / "wav.scp", paths)
    write_table(folder / "text", texts)


def with_pause(first: Clip, second: Clip, pause_s: float, rng: Random) -> Samples:
    """Return the samples of two clips with a pause of room tone between them."""
    tone = pink_noise(round(pause_s * RATE_HZ), rng)
    tone *= amplitude(ROOM_TONE_DB) / rms(tone)
    return np.concatenate([first.read(), tone, second.read()])


def make_conditions(args: argparse.Namespace) -> None:
    """Write all data directories.

    Raises:
        InputError: A corpus has too few utterances.
    """
    rng = np.random.default_rng(args.seed)
    few = args.num_utterances

    def choose(clips: Sequence[Clip], count: int, folder: Path) -> list[Clip]:
        if len(clips) < count:
            raise InputError(f"{folder}: {len(clips)} utterances; at least {count} are needed")
        return [clips[index] for index in sorted(rng.choice(len(clips), count, replace=False))]

    clean = choose(librispeech(args.test_clean), 3 * few, args.test_clean)
    accented = choose(kaldi_clips(args.accented), 2 * few, args.accented)
    words = choose(digits(args.digits), few, args.digits)
    talkers = librispeech(args.train_clean)
    for name, clips in {"clean": clean, "accented": accented, "digits": words}.items():
        write_data_dir(args.output / name, ((clip.id, clip.path, clip.text) for clip in clips))
    noisy = [clean[index] for index in sorted(rng.choice(len(clean), few, replace=False))]
    for name, effect in tqdm(EFFECTS.items(), unit="condition"):
        changed = ((clip.id, effect(clip.read(), rng, talkers), clip.text) for clip in noisy)
        write_data_dir(args.output / name, changed)
    for pause_s in PAUSES_S:
        joined = (
            (f"{one.id}_{two.id}", with_pause(one, two, pause_s, rng), f"{one.text} {two.text}")
            for one, two in zip(noisy[::2], noisy[1::2], strict=False)
        )
        write_data_dir(args.output / f"pause_{pause_s}s", joined)
    for name, sound in SOUNDS.items():
        sounds = (
            (f"{name}_{-level_db}db_{index}", no_speech(sound, level_db, rng), SILENCE)
            for index, level_db in enumerate(islice(cycle(NO_SPEECH_DB), args.num_silent))
        )
        write_data_dir(args.output / f"no_speech_{name}", sounds)


def main(cmd: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="folder of the data directories")
    for name in ("test_clean", "train_clean", "accented", "digits"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="folder of a corpus")
    few = "utterances of most conditions; clean has three times, accented twice as many"
    parser.add_argument("--num_utterances", type=positive, default=100, help=few)
    parser.add_argument("--num_silent", type=positive, default=60, help="clips of each no_speech_*")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(cmd)
    run_main("conditions", lambda: make_conditions(args))


if __name__ == "__main__":
    main()
