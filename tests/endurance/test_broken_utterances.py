"""Each way to break an utterance once, and that what goes wrong is counted."""

import pytest
import soundfile
from broken_utterances import (
    BAD_LINES,
    BROKEN,
    break_some,
    count_differing,
    count_unnamed,
    write_data,
)
from harness.recipe_run import decoding_command, make_recipe, run
from openai_whisper import noise_and_silence

from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.audio_writer import AudioOptions
from espnet_medusa.kaldi.format import BAD_UTTERANCES, FormatOptions, format_data_dir
from espnet_medusa.kaldi.table import read_table

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


@pytest.fixture
def data(tmp_path):
    """A data directory of noise."""
    for number in range(WAYS + 2):
        path = tmp_path / f"u{number:02d}.flac"
        soundfile.write(path, noise_and_silence(1.0, number), 16000)
        for name, value in (("wav.scp", path), ("text", "word")):
            with (tmp_path / name).open("a") as stream:
                stream.write(f"{path.stem} {value}\n")
    return tmp_path


def test_stage_3_names_each_way(data):
    some = break_some(data, WAYS + 2, WAYS, data / "broken", seed=0)
    assert len(some.good) == 2 and {*some.broken.values()} == {*BAD_LINES, *BROKEN}
    write_data(data / "mixed", some, some.lines)
    options = FormatOptions(AudioOptions(max_duration_s=30.0), on_bad="skip")
    report = format_data_dir(data / "mixed", data / "dump", options)
    assert report.n_written == 2
    assert count_unnamed(read_table(data / "dump" / BAD_UTTERANCES), some.broken) == 0


def test_there_must_be_so_many(data):
    with pytest.raises(InputError, match=f"{WAYS + 2} utterances; allowed: --utterances or more"):
        break_some(data, 1000, 50, data / "broken", seed=0)


def test_a_recipe_decodes_by_links(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.yaml", "model.pth"):
        (model / name).write_text(name)
    recipe = make_recipe(tmp_path / "recipe", model)
    assert (recipe / "exp/asr/model.pth").read_text() == "model.pth"
    done = run(decoding_command([2]), recipe)
    assert done.returncode == 0 and "Stage" not in done.stdout, done.stderr
