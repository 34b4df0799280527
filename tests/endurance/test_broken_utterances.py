"""Each way to break an utterance once, and that what goes wrong is counted."""

import broken_utterances
import pytest
import soundfile
import warm_python
from broken_utterances import BAD_LINES, BROKEN, count_differing, count_unnamed, main
from checks_table import read_rows
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper

from espnet_medusa.bin import convert

WAYS = len(BAD_LINES) + len(BROKEN)


def test_texts_that_differ_are_counted():
    expected = {"a": "one two", "b": "", "c": "three"}
    assert count_differing({"a": "one  two ", "b": "", "c": "three"}, expected) == 0
    assert count_differing({"a": "one", "c": "three", "d": ""}, expected) == 3


def test_broken_ones_without_their_reason_are_counted():
    broken = {"a": "folder", "b": "missing"}
    told = {"a": "a.wav: is a folder; give a file", "b": "b.wav: cannot be read (No such file)"}
    assert count_unnamed(told, broken) == 0
    assert count_unnamed({"a": told["a"]}, broken) == 1
    assert count_unnamed({**told, "b": "is a folder", "c": "good"}, broken) == 2


def test_each_way_once(tmp_path, monkeypatch):
    monkeypatch.setattr(broken_utterances, "environment", warm_python.environment)
    whisper = save_openai_whisper(openai_whisper(1, end=6.0), tmp_path / "whisper.pt")
    convert.main([str(whisper), str(tmp_path / "exp"), "--language", "en"])
    data = tmp_path / "data"
    data.mkdir()
    for number in range(WAYS + 2):
        path = data / f"u{number:02d}.flac"
        soundfile.write(path, noise_and_silence(1.0, number), 16000)
        for name, value in (("wav.scp", path), ("text", "word")):
            with (data / name).open("a") as stream:
                stream.write(f"{path.stem} {value}\n")
    config, table = tmp_path / "decode.yaml", tmp_path / "checks.md"
    config.write_text("search: greedy\nmaxlenratio: -5\n")
    command = ["--model", tmp_path / "exp", "--data_dir", data, "--config", config]
    command += ["--utterances", WAYS + 2, "--broken", WAYS, "--table", table]
    main([*map(str, command)])
    (row,) = read_rows(table)
    assert row.right == "yes" and f"{WAYS} broken in {WAYS} ways: 0 texts differ" in row.found
    with pytest.raises(SystemExit):
        main([*map(str, command), "--utterances", "1000"])
