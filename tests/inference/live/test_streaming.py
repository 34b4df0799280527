"""ESPnet's streaming call and command with a Whisper's experiment."""

import sys

import numpy as np
import pytest
import soundfile
import torch
from experiment import read_lines
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from refusals import refuses

from espnet_medusa.bin import python
from espnet_medusa.inference.convert.experiment import write_experiment
from espnet_medusa.inference.convert.read_whisper import read_whisper
from espnet_medusa.inference.streaming import Speech2TextStreaming
from espnet_medusa.networks.whisper.text import TextOptions

OPTIONS = {"skip_silence": False, "no_speech_threshold": None, "compression_ratio_threshold": None}


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Config and weights of a converted Whisper."""
    folder = tmp_path_factory.mktemp("streaming")
    weights = save_openai_whisper(openai_whisper(4, end=3.0, text_context=96), folder / "w.pt")
    write_experiment(read_whisper(str(weights), TextOptions()), folder, folder)
    return folder / "config.yaml", folder / "model.pth"


def open_streaming(files, **options):
    given = {"search": "greedy", "language": "en", "live": OPTIONS}
    return Speech2TextStreaming(*files, **given | options)


def test_the_call_of_espnet(files):
    streaming, samples = open_streaming(files), noise_and_silence(6, 1)
    texts = []
    for first in range(0, len(samples), 16000):
        found = streaming(samples[first : first + 16000], is_final=False)
        texts.append(found[0][0] if found else "")
    ((text, tokens, ids, hypothesis),) = streaming(torch.zeros(0), is_final=True)
    assert text and len(tokens) == len(ids) == len(hypothesis.yseq) - 2
    live, words = streaming.speech2text.live(**OPTIONS), []
    for first in range(0, len(samples), 16000):
        live.add(samples[first : first + 16000])
        words += live.update().confirmed
    words += live.finish().confirmed
    assert text == "".join(word.text for word in words).strip()
    assert streaming.confirmed == [] and not streaming.live.audio.added
    # The next stream begins anew.
    again = [streaming(samples[first : first + 16000], False) for first in range(0, 96000, 16000)]
    assert [found[0][0] if found else "" for found in again] == texts


def test_no_audio(files):
    ((text, tokens, ids, _),) = open_streaming(files)(np.zeros(0, np.float32))
    assert (text, tokens, ids) == ("", [], [])


@refuses(
    ({"decoder_text_length_limit": 3}, "decoder_text_length_limit: 3; not used live"),
    ({"live": {"buffer_seconds": 99}}, "buffer_seconds: 99"),
)
def test_wrong_options(options, files):
    open_streaming(files, **options)


def test_the_command(files, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    soundfile.write(tmp_path / "a.wav", noise_and_silence(4, 1), 16000)
    (tmp_path / "wav.scp").write_text(f"a {tmp_path / 'a.wav'}\n")
    words = ["--asr_train_config", files[0], "--asr_model_file", files[1], "--num_workers", "0"]
    words += ["--data_path_and_name_and_type", f"{tmp_path / 'wav.scp'},speech,sound"]
    words += ["--output_dir", tmp_path / "out", "--sim_chunk_length", "16000", "--beam_size", "1"]
    module = "espnet2.bin.asr_inference_streaming"
    python.main(["-m", module, *map(str, words), "--ctc_weight", "0.0"])
    assert "a" in read_lines(tmp_path / "out" / "1best_recog" / "token_int")
