"""ESPnet's own commands open our models, and get the text of ``espnet_medusa.transcribe``."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import soundfile
import torch
from experiment import NO_CTC, make_experiment
from media_files import speechlike
from refusals import refused
from test_defaults import all_speech

import espnet_medusa
from espnet_medusa.bin.python import open_with_our_search
from espnet_medusa.data.audio.voice_activity import SpeechActivity
from espnet_medusa.inference.packed_model import pack_model
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.transcription.espnet_commands import open_s2t


@pytest.fixture
def recording(whisper, tmp_path, monkeypatch):
    """A file longer than a window."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(whisper.parent / "cache"))
    monkeypatch.setattr(SpeechActivity, "of", all_speech)
    soundfile.write(tmp_path / "talk.wav", speechlike(31.0), 16000)
    return tmp_path / "talk.wav"


def test_a_whisper_is_called_as_espnets_class(whisper, recording):
    (expected,) = espnet_medusa.transcribe(recording, str(whisper), device="cpu", timestamps=True)
    model = open_s2t(str(whisper), "cpu")
    segments = model.decode_long(str(recording), model.no_language(), "<asr>")
    assert [(one.start_s, one.end_s, one.text.strip()) for one in expected.segments] == segments
    samples, _ = soundfile.read(recording, dtype="float32")
    (read,) = espnet_medusa.transcribe(recording, str(whisper), device="cpu", task="translate")
    text = model.best_path(torch.from_numpy(samples), f"<{read.language}>", "<st_eng>")[0][3]
    assert text == " ".join(one.text.strip() for one in read.segments)
    assert model.by_task["<st_eng>"].whisper.task == "translate"
    with refused("task: <st_deu>; allowed with this model: <asr>, <st_eng>"):
        model.decode_long(str(recording), task_sym="<st_deu>")
    with refused("language: 'xxx'; allowed: "):
        model.decode_long(str(recording), "<xxx>")


def test_a_packed_model_without_long_audio(recording, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = make_experiment(Path("exp"), 1, model_conf=NO_CTC)
    files = {"asr_train_config": made.config, "asr_model_file": made.model}
    pack_model(files, [], Path("model.zip"))
    samples, _ = soundfile.read(recording, dtype="float32", stop=24000)
    soundfile.write("short.wav", samples, 16000)
    options = {"maxlenratio": -5, "decoder_precision": None}
    expected = Speech2Text(**files, **options, beam_size=5, ctc_weight=0.0)(samples)[0][0]
    found = open_s2t("model.zip", **options).decode_long(Path("short.wav"))
    assert found == [(0.0, 1.5, expected)]


def test_espnets_command_prints_our_text(whisper, recording, monkeypatch, capsys):
    pretrained = pytest.importorskip("espnet2.utils.pretrained")
    cli = pytest.importorskip("espnet2.bin.cli")
    module = SimpleNamespace(**vars(pretrained))
    open_with_our_search(module)
    monkeypatch.setattr(cli, "build_pretrained", module.build_pretrained)
    command = ["transcribe", str(recording), "--device", "cpu", "--model", str(whisper)]
    assert cli.main(command) == 0
    (expected,) = espnet_medusa.transcribe(recording, str(whisper), device="cpu", timestamps=True)
    texts = [segment.text.strip() for segment in expected.segments]
    assert capsys.readouterr().out.splitlines()[-1] == " ".join(texts)
    assert cli.main([*command[:-1], "nothing.zip"]) == 1
    assert "nothing.zip: no such file" in capsys.readouterr().err

    class Other:
        def from_pretrained(*arguments, **options):
            return arguments, options

    opened = module.build_pretrained(Other, "tag", "cpu", "", "", a=1)
    assert opened == (("tag",), {"device": "cpu", "a": 1})
