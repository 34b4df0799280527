"""The command without options for a GPU, on a mock one."""

import pytest
import soundfile
import torch
from media_files import speechlike
from pretended_cuda import pretended_cuda

from espnet_medusa.bin import transcribe
from espnet_medusa.decoding.runtime.precision import FLOAT16, IN_BFLOAT16, TABLE, Processor
from espnet_medusa.inference import decoding_command
from espnet_medusa.networks.whisper.log_mel import LogMel


@pytest.fixture
def gpu(monkeypatch):
    """A mock GPU that torch finds, with 500 MB of free memory."""
    monkeypatch.setattr(decoding_command, "device_of_ngpu", lambda ngpu: ["cpu", "cuda:0"][ngpu])
    # The mock computes on the CPU, where torch lacks operations in float16.
    monkeypatch.setitem(TABLE[Processor.GPU], FLOAT16, IN_BFLOAT16)
    # The mock has no changes of shape in place, which torch.stft makes without a batch.
    of_batch = LogMel._log_mel

    def log_mel(self, samples, *args, **options):
        return of_batch(self, samples[None], *args, **options)[0]

    monkeypatch.setattr(LogMel, "_log_mel", log_mel)
    with pretended_cuda() as gpu:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * 10**8, 10**10))
        yield gpu


@pytest.mark.parametrize(
    ("words", "search"),
    [
        ("", "beam 5"),
        ("--beam_size 1", "greedy"),
        ("--word_timestamps true", "beam 5"),
        ("--vad_filter true --vad_parameters threshold=0.01", "beam 5"),
        ("--fallback_on any_failure --logprob_threshold 0", "beam 5"),
    ],
)
def test_a_gpu_needs_no_options(words, search, whisper, gpu, tmp_path, monkeypatch, capsys):
    """Files of any length are decoded together, in half precision; greedy search lets two wait."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(whisper.parent / "cache"))
    (tmp_path / "talks").mkdir()
    for name, seconds in {"a": 1.0, "b": 3.0, "c": 2.0, "long": 31.0}.items():
        soundfile.write(tmp_path / "talks" / f"{name}.wav", speechlike(seconds), 16000)
    command = [str(tmp_path / "talks"), "--model", str(whisper), *words.split()]
    transcribe.main([*command, "--output_dir", str(tmp_path / "out")])
    out, messages = capsys.readouterr()
    assert f"float16, {search}, GPU, 2 together" in messages and "halving" not in messages
    assert sorted(line.split()[0] for line in out.splitlines()) == ["a", "b", "c", "long"]
    assert gpu.graphs
