"""The command, its --config and ``transcribe`` in Python have one set of defaults."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import soundfile
import torch
from cases import cases
from made_up_speech import activity
from media_files import speechlike
from stock_experiment import files, stock_experiment

import espnet_medusa
from espnet_medusa.bin import transcribe as command
from espnet_medusa.data.audio.voice_activity import SpeechActivity
from espnet_medusa.data.command_line import make_parser
from espnet_medusa.decoding.runtime.precision import has_kernels
from espnet_medusa.inference.job import JobInput
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.transcription import batch_size, defaults
from espnet_medusa.transcription import transcribe as transcribe_module

CPU = torch.device("cpu")
INPUTS = {"asr_train_config": "other.yaml", "asr_model_file": "other.pth", "output_dir": "other"}


def all_speech(samples):
    seconds = len(samples) / 16000
    return activity((0.0, seconds), seconds=seconds)


@pytest.fixture
def decoders(monkeypatch):
    """Batch sizes, options and searches of all decoders that are made."""
    made, original = [], transcribe_module.make_decoder

    def make_decoder(speech2text, batch_size, long_form, reading):
        model, beams = speech2text.model, speech2text.beam_search
        search = model.options, model.limits, model.writer.nbest, model.prompts.language
        search += beams.beam_size, beams.weights, speech2text.dtype, str(speech2text.device)
        made.append((batch_size, search, asdict(long_form), asdict(reading)))
        return original(speech2text, batch_size, long_form, reading)

    for module in (command, transcribe_module):
        monkeypatch.setattr(module, "make_decoder", make_decoder)
    return made


@pytest.fixture
def by_command(tmp_path, monkeypatch):
    """Function that transcribes with the command and returns the transcripts."""
    found, original = [], transcribe_module.transcribe_into

    def transcribe_into(*args, **options):
        found[:] = original(*args, **options)
        return found

    monkeypatch.setattr(command, "transcribe_into", transcribe_into)

    def run(audio, model, *words):
        output = str(tmp_path / f"out{len(words)}")
        command.main([str(audio), "--model", str(model), "--output_dir", output, *map(str, words)])
        return results(found)

    return run


def results(transcripts):
    return {one.recording.id: (one.text, one.segments, one.language) for one in transcripts}


def test_one_set_of_defaults(whisper, tmp_path, monkeypatch, decoders, by_command):
    monkeypatch.setenv("XDG_CACHE_HOME", str(whisper.parent / "cache"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(SpeechActivity, "of", all_speech)
    audio = tmp_path / "talks"
    audio.mkdir()
    for name, seconds in {"short": 2.0, "long": 31.0}.items():
        soundfile.write(audio / f"{name}.wav", speechlike(seconds), 16000)
    expected = results(espnet_medusa.transcribe(audio, str(whisper)))
    assert all(text for text, _, _ in expected.values()) and expected["long"][1]
    assert by_command(audio, whisper) == expected
    (tmp_path / "inputs.yaml").write_text(json.dumps(INPUTS))
    assert by_command(audio, whisper, "--config", tmp_path / "inputs.yaml") == expected
    assert decoders == [decoders[0]] * 3
    batch_size, (options, *_), long_form, reading = decoders[0]
    assert batch_size == 8 and options.decoder_precision == ("int8" if has_kernels(CPU) else None)
    assert (options.search, long_form["fallback_on"], long_form["best_of"]) == (
        "beam",
        "repetition",
        5,
    )
    assert long_form["skip_silence"] and reading["on_bad_audio"] == "decode"


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """Function that returns the command's options with a config and further words."""
    monkeypatch.setattr(
        command, "find_model", lambda *names: ("config.yaml", "model.pth", "detect")
    )

    def choose(config: str | None, *words: str):
        given = ["talk.wav", "--model", "m", "--device", "cpu", *words]
        if config is not None:
            (tmp_path / "decode.yaml").write_text(config)
            given += ["--config", str(tmp_path / "decode.yaml")]
        return command.decode_options(make_parser("", command.add_options).parse_args(given))

    return choose


@cases(
    ("", [], {}), ("# nothing", [], {}), ("{}", [], {}),
    ("search: greedy", [], {"search": "greedy", "skip_silence": True, "batch_size": 8}),
    ("beam_size: 1", [], {"search": "greedy", "beam_size": 1}),
    ("beam_size: null\nbest_of: None", [], {"search": "greedy", "beam_size": 1, "best_of": None}),
    ("search: beam", [], {"search": "beam", "beam_size": 5, "ctc_weight": 0.0, "nbest": 1}),
    ("beam_size: 3\nctc_weight: 0.3", [], {"search": "beam", "beam_size": 3, "ctc_weight": 0.3}),
    ("beam_size: 3", ["--beam_size", "None"], {"search": "greedy", "beam_size": 1}),
    ("beam_size: 1", ["--beam_size", "2"], {"search": "beam", "beam_size": 2}),
    ("decoder_precision: null", [], {"decoder_precision": None}),
    ("dtype: bfloat16", [], {"decoder_precision": None, "dtype": "bfloat16"}),
    ("language: de\nbatch_size: 2", ["--language", "fr"], {"language": "fr", "batch_size": 2}),
)  # fmt: skip
def test_a_config_changes_only_its_own_options(config, words, expected, chosen):
    options = chosen(config, *words)
    assert {name: options[name] for name in expected} == expected
    others = chosen(None)
    assert {name for name in others if others[name] != options[name]} <= {*expected, "config"}


def test_precision_of_the_default():
    chosen = defaults.with_defaults({}, "cpu")
    assert defaults.with_defaults({"dtype": "float32"}, "cpu") == chosen | {"dtype": "float32"}
    assert chosen["decoder_precision"] == ("int8" if has_kernels(CPU) else None)
    line = defaults.describe("base", chosen | {"ngpu": 0, "decoder_precision": "int8"})
    assert line.startswith("base, int8, beam 5, ") and line.endswith(" threads")
    greedy = {"ngpu": 1, "decoder_precision": None, "dtype": "bfloat16", "search": "greedy"}
    line = defaults.describe("base", chosen | greedy)
    assert line == "base, bfloat16, greedy, GPU, 8 together"


@cases(
    ({"a": torch.tensor([-65504.0, 2.0]), "n": torch.tensor(70000)}, "float16"),
    ({"a": torch.tensor([-7e4, 2.0])}, "float32"),
    ({"a": torch.tensor([7e4]).bfloat16(), "b": torch.ones(1).half()}, "bfloat16"),
    ({"a": torch.tensor([7e4]).bfloat16(), "b": torch.ones(1)}, "float32"),
)
def test_precision_on_a_gpu_by_the_weights(weights, expected, tmp_path, caplog):
    torch.save(weights, tmp_path / "model.pth")
    on_gpu = "cuda", tmp_path / "model.pth"
    chosen = defaults.with_defaults({}, *on_gpu)
    assert (chosen["decoder_precision"], chosen["batch_size"]) == (expected, None)
    assert ("decoder_precision: " + expected in caplog.text) == (expected != "float16")
    assert defaults.with_defaults({"dtype": "float32"}, *on_gpu) == chosen | {"dtype": "float32"}
    given = {"decoder_precision": "bfloat16", "batch_size": 3}
    assert given.items() <= defaults.with_defaults(given, *on_gpu).items()
    others = {"decoder_precision": None}, {"dtype": "bfloat16"}, {"quantize_asr_model": True}
    found = [defaults.with_defaults(one, *on_gpu)["decoder_precision"] for one in others]
    assert found == [None] * 3


@cases(
    # decoder layers, width, mel bins, GB of free memory, batch size
    ((6, 512, 80), 80, 32), ((6, 512, 80), 8, 16), ((32, 1280, 128), 75, 32),
    ((32, 1280, 128), 20, 16), ((32, 1280, 128), 4, 2), ((32, 1280, 128), 0.1, 1),
)  # fmt: skip
def test_batch_size_of_a_gpu_by_its_free_memory(shape, free_gb, expected):
    layers, width, bins = shape
    each = batch_size.utterance_bytes(layers, width, 51865, 1500, bins, itemsize=2)
    assert 0.1e9 < each < 1e9
    assert batch_size.fitting_batch_size(int(free_gb * 1e9), each) == expected


def test_batch_size_of_a_model(speech2text, monkeypatch):
    free = Mock(return_value=(10**9, 10**10))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    on_gpu = replace(speech2text.model, device=torch.device("cuda:1"))
    assert batch_size.default_batch_size(speech2text.model) == 8
    assert batch_size.default_batch_size(replace(on_gpu, search=None)) == 8
    assert batch_size.default_batch_size(on_gpu) == 4
    free.assert_called_once_with(torch.device("cuda:1"))


@cases(("cuda", 2, ["long", "short", "broken"]), ("cuda", 1, None), ("cpu", 2, None))
def test_files_of_a_gpus_batches_are_sorted(device, together, expected, speech2text):
    model = replace(speech2text.model, device=torch.device(device))
    seconds = {"short.wav": 1.0, "long.wav": 9.0, "broken.wav": None}
    decoder = SimpleNamespace(
        speech2text=SimpleNamespace(model=model), batch_size=together,
        reader=SimpleNamespace(duration_s=seconds.get),
    )  # fmt: skip
    keys = ["short", "long", "broken"]
    job = JobInput(keys, {key: f"{key}.wav" for key in keys}, {})
    assert transcribe_module._longest_first(job, decoder).keys == (expected or keys)


@pytest.mark.parametrize("name", ["beam_size", "best_of"])
def test_none_as_in_openai_whisper(name):
    """Greedy search, and one sample."""
    words = ["talk.wav", "--model", "m", f"--{name}", "None"]
    assert getattr(make_parser("", command.add_options).parse_args(words), name) is None
    assert defaults.with_defaults({"beam_size": None}, "cpu")["search"] == "greedy"
    assert LongFormOptions(best_of=None).best_of == 1


def test_speech2text_keeps_espnets_meaning(whisper):
    speech2text = Speech2Text.from_pretrained(str(whisper))
    assert (speech2text.model.options.search, speech2text.beam_search.beam_size) == ("beam", 20)
    assert speech2text.model.options.decoder_precision is None
    plain = LongFormOptions()
    assert (plain.best_of, plain.fallback_on, plain.skip_silence) == (1, "any_failure", False)


def test_espnets_own_search_decodes_by_default(tmp_path, by_command):
    """It refuses batches; the files of a batch are decoded one by one."""
    experiment = stock_experiment(tmp_path / "exp", decoder="rnn", decoder_conf={})
    soundfile.write(tmp_path / "talk.wav", speechlike(0.6), 16000)
    (tmp_path / "own.yaml").write_text("maxlenratio: -3\n")
    words = tmp_path / "talk.wav", experiment.folder, "--config", tmp_path / "own.yaml"
    ((text, _, _),) = by_command(*words).values()
    own = Speech2Text(**files(experiment), maxlenratio=-3, beam_size=5, ctc_weight=0.0)
    samples, _ = soundfile.read(tmp_path / "talk.wav", dtype="float32")
    assert text.split() == own(samples)[0][0].split()
