"""whisper.cpp, on weights in its ggml format."""

import re
import struct
import time
from dataclasses import astuple
from pathlib import Path

import _pywhispercpp
import numpy as np
from pywhispercpp.model import Model
from whisper.audio import mel_filters
from whisper.model import Whisper
from whisper.tokenizer import get_encoding

from contestants.base import Result, Timed, Transcriber
from contestants.openai_whisper import load_whisper
from contestants.ways import Way

MAGIC = 0x67676D6C  # "ggml"
FLOAT32, FLOAT16 = 0, 1  # ggml's types of tensors
TIMES = re.compile(r"(?:mel|encode) time\s*=\s*([\d.]+) ms")
MILLISECOND = 1e-3


class WhisperCpp(Transcriber):
    """``whisper_full`` without timestamps and fallback."""

    def load(self) -> None:
        path = self.subject.folder / "ggml.bin"
        if not path.exists():
            write_ggml(load_whisper(self.subject.hugging_face), path)
        options = {
            "n_threads": self.setup.threads, "language": self.subject.language,
            "no_timestamps": True, "single_segment": True, "temperature_inc": 0.0,
            "print_progress": False,
        }  # fmt: skip
        self.models = [Model(str(path), strategy, **options) for strategy in (0, 1)]
        self.log: list[str] = []
        _pywhispercpp.whisper_log_set(lambda level, text, *_: self.log.append(text))

    def transcribe(self, way: Way, samples: np.ndarray) -> Timed:
        model = self.models[way.beam_size > 1]
        beams = {"beam_search": {"beam_size": way.beam_size, "patience": -1.0}}
        _pywhispercpp.whisper_reset_timings(model._ctx)
        started = time.perf_counter()
        segments = model.transcribe(samples, **(beams if way.beam_size > 1 else {}))
        seconds = time.perf_counter() - started
        self.log.clear()
        _pywhispercpp.whisper_print_timings(model._ctx)
        encoder = MILLISECOND * sum(map(float, TIMES.findall("".join(self.log))))
        text = " ".join(segment.text for segment in segments)
        return Timed([Result(text)], encoder, seconds - encoder)


def write_ggml(model: Whisper, path: Path) -> None:
    """Write a ggml file as whisper.cpp's ``convert-pt-to-ggml.py`` does, with float16 matrices.

    It has the magic number, sizes, mel filters, tokens as bytes, and tensors. whisper.cpp itself
    adds the special tokens.
    """
    dims = model.dims
    sizes = (dims.n_vocab, *astuple(dims)[1:5], *astuple(dims)[6:], dims.n_mels)
    filters = mel_filters("cpu", dims.n_mels).numpy()
    encoding = get_encoding("multilingual" if model.is_multilingual else "gpt2")
    with path.open("wb") as stream:
        stream.write(struct.pack("<12i", MAGIC, *sizes, FLOAT16))
        stream.write(struct.pack("<2i", *filters.shape) + filters.astype("<f4").tobytes())
        stream.write(struct.pack("<i", encoding.eot_token))
        for token in map(encoding.decode_single_token_bytes, range(encoding.eot_token)):
            stream.write(struct.pack("<i", len(token)) + token)
        for name, tensor in model.state_dict().items():
            values, kind = tensor.numpy(), FLOAT16
            if values.ndim == 1 or name.endswith("positional_embedding"):
                kind = FLOAT32
            if re.fullmatch(r"encoder\.conv\d\.bias", name):
                values = values[:, None]
            shape = values.shape[::-1]
            stream.write(struct.pack("<3i", len(shape), len(name), kind))
            stream.write(struct.pack(f"<{len(shape)}i", *shape) + name.encode())
            stream.write(values.astype("<f2" if kind == FLOAT16 else "<f4").tobytes())
