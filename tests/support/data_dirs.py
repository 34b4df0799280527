"""Small data directories of generated audio."""

from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile
from tones import RATE_HZ, tone

from espnet_medusa.data.kaldi.table import write_table


@pytest.fixture
def make_data_dir(tmp_path: Path) -> Callable[..., Path]:
    """A builder of valid data directories; utterance i is a tone of 200 + 10 i Hz."""

    def build(n_utterances: int = 4, name: str = "data", duration_s: float = 0.2) -> Path:
        folder = tmp_path / name
        (folder / "audio").mkdir(parents=True)
        tables = {table: {} for table in ("wav.scp", "text", "utt2spk", "spk2utt")}
        for i in range(n_utterances):
            speaker = f"s{i % 2}"
            key = f"{speaker}-u{i:03d}"
            path = folder / "audio" / f"{key}.wav"
            soundfile.write(path, tone(200 + 10 * i, duration_s), RATE_HZ)
            tables["wav.scp"][key], tables["text"][key] = str(path), f"word {i}"
            tables["utt2spk"][key] = speaker
            tables["spk2utt"][speaker] = f"{tables['spk2utt'].get(speaker, '')} {key}".strip()
        for table, entries in tables.items():
            write_table(folder / table, entries)
        return folder

    return build


@pytest.fixture
def folder(make_data_dir: Callable[..., Path]) -> Path:
    """A valid data directory of four utterances."""
    return make_data_dir()
