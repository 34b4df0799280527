"""Each way to break an utterance once, and the counts of differences."""

import soundfile
from broken_utterances import REASONS, break_some, count_differing, count_unnamed, write_data
from openai_whisper import noise_and_silence
from refusals import assert_refused

from espnet_medusa.kaldi.audio_writer import AudioOptions
from espnet_medusa.kaldi.format import BAD_UTTERANCES, FormatOptions, format_data_dir
from espnet_medusa.kaldi.table import read_table


def test_differing_texts_and_missing_reasons_are_counted():
    expected = {"a": "one two", "b": "", "c": "three"}
    assert count_differing({"a": "one  two ", "b": "", "c": "three"}, expected) == 0
    assert count_differing({"a": "one", "c": "three", "d": ""}, expected) == 3
    broken = {"a": "folder", "b": "missing"}
    reasons = {"a": "a.wav: is a folder; give a file", "b": "b.wav: cannot be read (No such file)"}
    assert count_unnamed(reasons, broken) == 0
    assert count_unnamed({"a": reasons["a"]}, broken) == 1
    assert count_unnamed({**reasons, "b": "is a folder", "c": "good"}, broken) == 2


def test_stage_3_reports_each_way(tmp_path):
    count = len(REASONS) + 2
    for number in range(count):
        path = tmp_path / f"u{number:02d}.flac"
        soundfile.write(path, noise_and_silence(1.0, number), 16000)
        for name, value in (("wav.scp", path), ("text", "word")):
            with (tmp_path / name).open("a") as stream:
                stream.write(f"{path.stem} {value}\n")
    assert_refused(f"{count} are too few for", break_some, tmp_path, 1000, 50, tmp_path / "none")
    some = break_some(tmp_path, count, len(REASONS), tmp_path / "broken")
    assert len(some.good) == 2 and {*some.broken.values()} == REASONS.keys()
    write_data(tmp_path / "mixed", some, some.lines)
    options = FormatOptions(AudioOptions(max_duration=30.0), on_bad="skip")
    assert format_data_dir(tmp_path / "mixed", tmp_path / "dump", options).n_written == 2
    assert count_unnamed(read_table(tmp_path / "dump" / BAD_UTTERANCES), some.broken) == 0
