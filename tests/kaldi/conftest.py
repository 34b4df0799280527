"""Small data directories of generated audio."""

from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile
from tones import RATE_HZ, tone


@pytest.fixture
def make_data_dir(tmp_path: Path) -> Callable[..., Path]:
    """A builder of valid data directories; utterance i is a tone of 200 + 10 i Hz."""

    def build(n_utterances: int = 4, name: str = "data", duration_s: float = 0.2) -> Path:
        folder = tmp_path / name
        (folder / "audio").mkdir(parents=True)
        tables: dict[str, list[str]] = {"wav.scp": [], "text": [], "utt2spk": [], "spk2utt": []}
        for i in range(n_utterances):
            key, speaker = f"s{i % 2}-u{i:03d}", f"s{i % 2}"
            path = folder / "audio" / f"{key}.wav"
            soundfile.write(path, tone(200 + 10 * i, duration_s), RATE_HZ)
            tables["wav.scp"].append(f"{key} {path}\n")
            tables["text"].append(f"{key} word {i}\n")
            tables["utt2spk"].append(f"{key} {speaker}\n")
        for speaker in ("s0", "s1")[:n_utterances]:
            keys = sorted(line.split()[0] for line in tables["utt2spk"] if line[:2] == speaker)
            tables["spk2utt"].append(f"{speaker} {' '.join(keys)}\n")
        for table, lines in tables.items():
            (folder / table).write_text("".join(sorted(lines)), encoding="utf-8")
        return folder

    return build
