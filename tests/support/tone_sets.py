"""Kaldi data directories of short tones."""

from pathlib import Path

import numpy as np
import soundfile

RATE = 16000
WORDS = ["one", "two", "three", "four", "five", "six"]


def write_set(folder: Path, count: int, broken: int = 0) -> None:
    """A Kaldi directory of short tones; the last ones are no audio."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    tables: dict[str, list[str]] = {name: [] for name in ("wav.scp", "text", "utt2spk", "spk2utt")}
    ids = [f"s-u{index}" for index in range(count)]
    for index, key in enumerate(ids):
        path = folder / f"{key}.wav"
        samples = np.sin(np.arange(int(RATE * (0.5 + 0.1 * index))) * (0.1 + 0.05 * index))
        samples = 0.3 * samples + 0.01 * generator.standard_normal(len(samples))
        soundfile.write(path, samples, RATE)
        if index >= count - broken:
            path.write_bytes(b"no audio")
        tables["wav.scp"].append(f"{key} {path}")
        tables["text"].append(f"{key} {WORDS[index]} {WORDS[-1 - index]}")
        tables["utt2spk"].append(f"{key} s")
    tables["spk2utt"].append(f"s {' '.join(ids)}")
    for name, lines in tables.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
