"""Chapters of LibriSpeech are all of their utterances, without pauses."""

import join_chapters
import numpy as np
import pytest
import soundfile

from espnet_medusa.kaldi.data_dir import validate_data_dir
from espnet_medusa.kaldi.table import read_table, write_table


@pytest.fixture
def data_dir(tmp_path):
    """Write chapters of three and one utterances, unsorted; return the folder and all samples."""
    rng, samples, folder = np.random.default_rng(0), {}, tmp_path / "data"
    for key in ("7-20-0002", "7-20-0000", "7-31-0005", "7-20-0001"):
        samples[key] = rng.integers(-3000, 3000, rng.integers(300, 900)).astype(np.int16)
        soundfile.write(tmp_path / f"{key}.flac", samples[key], 16000)
    write_table(folder / "wav.scp", {key: str(tmp_path / f"{key}.flac") for key in samples})
    write_table(folder / "text", {key: f"WORDS OF {key}" for key in samples})
    write_table(folder / "utt2lang", {key: f"language-{key[2]}" for key in samples})
    return folder, samples


def run(data_dir, output) -> int:
    try:
        join_chapters.main(["--data_dir", str(data_dir), "--output_dir", str(output)])
    except SystemExit as stop:
        return stop.code
    return 0


def test_a_chapter_is_its_utterances_in_order(data_dir, tmp_path, capsys):
    folder, samples = data_dir
    assert run(folder, tmp_path / "chapters") == 0
    assert "2 chapters" in capsys.readouterr().out
    assert validate_data_dir(tmp_path / "chapters") == []
    audio = read_table(tmp_path / "chapters" / "wav.scp")
    for chapter, numbers in {"7-20": (0, 1, 2), "7-31": (5,)}.items():
        keys = [f"{chapter}-{number:04d}" for number in numbers]
        joined, rate_hz = soundfile.read(audio[chapter], dtype="int16")
        assert rate_hz == 16000
        assert np.array_equal(joined, np.concatenate([samples[key] for key in keys]))
        text = read_table(tmp_path / "chapters" / "text")[chapter]
        assert text == " ".join(f"WORDS OF {key}" for key in keys)
    languages = read_table(tmp_path / "chapters" / "utt2lang")
    assert languages == {"7-20": "language-2", "7-31": "language-3"}


def test_unusable_utterances_are_named(data_dir, tmp_path, capsys):
    folder, samples = data_dir
    soundfile.write(tmp_path / "7-20-0001.flac", samples["7-20-0001"], 8000)
    assert run(folder, tmp_path / "chapters") == 1
    assert "7-20-0001.flac: 8000 Hz; allowed: 16000 Hz" in capsys.readouterr().err
    write_table(folder / "text", {"7-20-0000": "WORDS"})
    assert run(folder, tmp_path / "chapters") == 1
    assert "text: 7-20-0001: missing" in capsys.readouterr().err
    write_table(folder / "wav.scp", {"talk": "talk.wav"})
    write_table(folder / "text", {"talk": "WORDS"})
    assert run(folder, tmp_path / "chapters") == 1
    assert "talk; allowed: ids READER-CHAPTER-NUMBER" in capsys.readouterr().err
