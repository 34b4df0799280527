"""The transcribing command over files of any length, with a Whisper."""

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import soundfile
from cases import cases
from experiment import read_lines
from openai_whisper import noise_and_silence

import espnet_medusa
from espnet_medusa.bin import transcribe as command
from espnet_medusa.data.command_line import make_parser
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import build_options
from espnet_medusa.decoding.search.statistics import read_statistics
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.segment import clamp_segments
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.transcription import transcribe as transcribe_module
from espnet_medusa.transcription.formats import OPENAI
from espnet_medusa.transcription.transcribe import check_used

SECONDS = {"short": 3, "long": 34, "other": 31}


@pytest.fixture
def run(transcribe_folder, tmp_path):
    talks = tmp_path / "talks"
    talks.mkdir()
    for seed, (name, seconds) in enumerate(SECONDS.items()):
        soundfile.write(talks / f"{name}.wav", noise_and_silence(seconds, seed), 16000)
    return functools.partial(transcribe_folder, talks)


def own_segments(speech2text, folder, name, **options):
    options |= {"temperature_increment_on_fallback": None, "no_speech_threshold": None}
    samples, _ = soundfile.read(folder / f"{name}.wav", dtype="float32")
    return [*clamp_segments(speech2text.transcribe(samples, **options), len(samples) / 16000)]


def assert_texts(speech2text, folder, names, **options):
    texts = read_lines(folder / "out" / "text")
    for name in names:
        segments = own_segments(speech2text, folder / "talks", name, **options)
        assert texts[name] == " ".join("".join(one.text for one in segments).split())


def test_files_of_any_length(run, speech2text, tmp_path, capsys, monkeypatch):
    (tmp_path / "talks" / "broken.wav").write_bytes(b"no audio")
    assert run("--output_format", "all") == 3
    out = tmp_path / "out"
    for name in SECONDS:
        segments = own_segments(speech2text, tmp_path / "talks", name)
        result = json.loads((out / f"{name}.json").read_text())
        rows = [(row["start"], row["tokens"]) for row in result["segments"]]
        assert rows == [(one.start_s, [*one.tokens]) for one in segments]
        assert {path.suffix[1:] for path in out.glob(f"{name}.*")} == {*OPENAI}
    assert [*read_lines(out / "failed_utterances")] == ["broken"]
    statistics = read_statistics(out / "statistics.json")
    for name, seconds in SECONDS.items():
        assert statistics[name].audio_seconds == pytest.approx(seconds, abs=0.01)
        assert statistics[name].decoder_calls > 0 < statistics[name].total_seconds
    assert (out / "segments" / "segments").is_file()
    # Another format needs no decoding.
    (tmp_path / "talks" / "broken.wav").unlink()
    written = {path: path.read_bytes() for path in out.glob("*.json")}
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.delattr(Speech2Text, "long_form")
        assert run("--output_format", "json") == 0
    assert {path: path.read_bytes() for path in written} == written


def test_short_files_are_decoded_without_timestamps_for_txt(run, speech2text, tmp_path):
    assert run() == 0
    assert_texts(speech2text, tmp_path, ["short"], without_timestamps=True)
    assert_texts(speech2text, tmp_path, ("long", "other"))
    lines = (tmp_path / "out" / "segments" / "segments").read_text().splitlines()
    assert {line.split()[1] for line in lines} <= {"long", "other"}


@cases(
    (["--initial_prompt", "Words of a user"], {"initial_prompt": "Words of a user"}),
    (["--config", "decode.yaml"], {"clip_timestamps": (0, 2, 30.5)}),
)
def test_short_files_use_options_of_long_audio(
    words, options, run, speech2text, tmp_path, in_folder
):
    Path("decode.yaml").write_text("search: greedy\nclip_timestamps: [0, 2, 30.5]\n")
    assert run(*words) == 0
    assert_texts(speech2text, tmp_path, SECONDS, without_timestamps=None, **options)


def test_unused_options_of_long_audio_are_named(speech2text, caplog):
    model = speech2text.model
    threshold = SimpleNamespace(
        model=replace(model, options=replace(model.options, acceptance="threshold"))
    )
    given = LongFormOptions(best_of=3, skip_silence=True, without_timestamps=True)
    for windows, defaults, names in (
        (LongFormOptions(), {}, "fallback;"),
        (LongFormOptions(temperature_increment_on_fallback=None), {}, None),
        (given, {}, "fallback, best_of, skip_silence;"),
        (given, {"best_of": 3, "skip_silence": True}, "fallback;"),
    ):
        windows = replace(windows, without_timestamps=None)
        caplog.clear()
        check_used(speech2text, windows, vars(windows))
        assert not caplog.messages, "this search writes timestamps"
        check_used(threshold, windows, (), defaults)
        reason = "acceptance: threshold; allowed with long audio: rules that verify drafts"
        assert caplog.messages == ([f"not used here: {names} {reason}"] if names else [])
    with pytest.raises(InputError, match="best_of: 3; not used here; acceptance: threshold"):
        check_used(threshold, given, {"best_of"})


def test_the_function_returns_segments(run, whisper, speech2text, tmp_path, monkeypatch):
    monkeypatch.setattr(transcribe_module, "Speech2Text", lambda *files, **options: speech2text)
    transcripts = espnet_medusa.transcribe(
        tmp_path / "talks", str(whisper), language="en", device="cpu", timestamps=True,
        batch_size=1, temperature_increment_on_fallback=None, no_speech_threshold=None,
        skip_silence=False,
    )  # fmt: skip
    found = {one.recording.id: [*one.segments] for one in transcripts}
    assert found == {name: own_segments(speech2text, tmp_path / "talks", name) for name in SECONDS}


@cases(
    ("txt", None, None, ["txt"], False),
    ("txt", False, None, ["txt"], True),
    ("json", None, None, ["json"], True),
    ("json", True, None, ["json"], False),
    ("srt", True, None, ["srt"], True),
    ("all", None, None, [*OPENAI], True),
    ("all", None, "no times", ["txt", "json"], False),
    ("json", None, "no times", ["json"], False),
)
def test_formats_with_times(output_format, without, reason, formats, timestamps):
    options = {"without_timestamps": without, "word_timestamps": False}
    assert command.choose_formats(output_format, options, reason) == (formats, timestamps)


def test_a_model_without_times_writes_no_subtitles():
    options = {"without_timestamps": None, "word_timestamps": False}
    with pytest.raises(InputError, match="output_format: srt; no times; allowed here: txt, json"):
        command.choose_formats("srt", options, "no times")
    with pytest.raises(InputError, match="word_timestamps: true; no times; allowed here: false"):
        command.choose_formats("txt", options | {"word_timestamps": True}, "no times")
    with pytest.raises(InputError, match="output_format: ctm; allowed with word_timestamps: true"):
        command.choose_formats("ctm", options, None)


def test_another_layout_of_subtitles_needs_no_decoding(run, tmp_path, monkeypatch, capsys):
    words = ["--word_timestamps", "true", "--output_format", "vtt"]
    assert run(*words) == 0
    (tmp_path / "out" / "long.vtt").rename(tmp_path / "before.vtt")
    monkeypatch.delattr(Speech2Text, "long_form")
    assert run(*words, "--max_words_per_line", "1", "--highlight_words", "true") == 0
    written = (tmp_path / "out" / "long.vtt").read_text()
    assert "<u>" in written and written != (tmp_path / "before.vtt").read_text()
    capsys.readouterr()
    assert run("--output_format", "vtt", "--max_line_width", "20") == 1
    assert "max_line_width: 20; allowed with word_timestamps: true" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["None", "0"])
def test_the_fallback_can_be_switched_off(value):
    """By openai-whisper's None, in the command and in a config, and by 0."""
    parser = make_parser("", command.add_options)
    given = ["talk.wav", "--model", "m", "--temperature_increment_on_fallback", value]
    increment = parser.parse_args(given).temperature_increment_on_fallback
    assert LongFormOptions(temperature_increment_on_fallback=increment).temperatures == [0.0]
    values = {"temperature_increment_on_fallback": value if value == "None" else 0}
    options = build_options(LongFormOptions, values, "config")
    assert options.temperatures == [0.0]


@pytest.mark.parametrize("form", ["json", "srt", "txt"])
def test_earlier_results_draft(form, run, tmp_path):
    names = {None: "before", "before": "after", "out": "again"}
    timed, folders = ["--output_format", form, "--without_timestamps", "false"], []
    for draft in (None, "before", "out"):
        words = [] if draft is None else ["--draft_text_from", tmp_path / draft, "--overwrite"]
        assert run(*timed, *words) == 0
        folders.append(shutil.copytree(tmp_path / "out", tmp_path / names[draft]))
    texts = [read_lines(folder / "text") for folder in folders]
    assert texts == texts[:1] * 3 and len(texts[0]) == len(SECONDS)
    statistics = [read_statistics(folder / "statistics.json").values() for folder in folders]
    calls = [sum(counts.decoder_calls for counts in one) for one in statistics]
    assert max(calls[1:]) < calls[0]
    assert run(*timed, "--draft_text_from", tmp_path / "no") == 1


def test_draft_texts_belong_to_files(whisper, run, tmp_path):
    def calls_of(draft_texts):
        audio = sorted((tmp_path / "talks").glob("*.wav"))
        options = {"beam_size": 1, "language": "en", "skip_silence": False}
        options |= {"no_speech_threshold": None, "temperature_increment_on_fallback": None}
        found = [*espnet_medusa.transcribe(audio, str(whisper), draft_texts=draft_texts, **options)]
        texts = {one.recording.name: one.text for one in found}
        return texts, sum(one.statistics.decoder_calls for one in found)

    texts, calls = calls_of(None)
    again, fewer = calls_of({"short": texts["short"], tmp_path / "talks/long.wav": texts["long"]})
    assert again == texts and fewer < calls
    with pytest.raises(InputError, match="draft_texts: nothing; allowed: paths of the audio"):
        calls_of({"nothing": "text"})
