"""Measure one program with one shape in this process, for ``whisper_shapes.py``.

python bench/one_shape.py PROGRAM FOLDER PRECISION TOKENS THREADS

Prints a list in JSON: milliseconds of the encoder for each of ``SECONDS``, milliseconds per token,
MB after loading, MB at most. Each program imports only what it needs.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

OURS, CTRANSLATE2 = PROGRAMS = ("ours", "CTranslate2")
SECONDS, WINDOW_S, RATE_HZ, FRAMES_PER_S = (5, 10, 30), 30, 16000, 100
Figures = tuple[float, dict[int, float], float]


def time_ours(folder: Path, precision: str, tokens: int, threads: int) -> Figures:
    """Return MB loaded, seconds of the encoder by seconds of audio, and seconds per token."""
    import torch

    from espnet_medusa import Speech2Text

    torch.set_num_threads(threads)
    options = {"search": "greedy", "language": "en", "draft_depth": 0, "ctc_weight": 0.0}
    options |= {"maxlenratio": -tokens, "minlenratio": -tokens, "suppress_tokens": []}
    if precision == "int8":
        options |= {"decoder_precision": precision, "mapped": True}
    model = Speech2Text(folder / OURS / "config.yaml", folder / OURS / "model.pth", **options)
    model.release_weights()
    loaded, encoding = memory_mb("VmRSS"), {}
    rng = np.random.default_rng(0)
    for seconds in (1, *SECONDS):  # the first one warms up
        speech = rng.normal(0, 0.1, seconds * RATE_HZ).astype(np.float32)
        audio = model.model.batch([speech])
        encoding[seconds] = timed(lambda audio=audio: model.model.encode(audio))
    (decoding,) = model.decode([speech])
    return loaded, encoding, decoding.statistics.decoder_seconds / decoding.statistics.decoder_calls


def time_ctranslate2(folder: Path, precision: str, tokens: int, threads: int) -> Figures:
    """Return the same as ``time_ours``; all audio has a window of 30 s."""
    import ctranslate2

    path = str(folder / CTRANSLATE2)
    model = ctranslate2.models.Whisper(path, "cpu", compute_type=precision, intra_threads=threads)
    loaded = memory_mb("VmRSS")
    mels = 128 if model.n_mels == 128 else 80
    features = np.zeros((1, mels, WINDOW_S * FRAMES_PER_S), np.float32)
    features += np.random.default_rng(0).normal(0, 0.3, features.shape).astype(np.float32)
    view = ctranslate2.StorageView.from_array(features)
    seconds = timed(lambda: model.encode(view))
    encoded, start = model.encode(view), [50258, 50259, 50359, 50363]

    def decode(number: int) -> int:
        options = {"beam_size": 1, "max_length": len(start) + number}
        options |= {"suppress_blank": False, "suppress_tokens": [50257]}
        return len(model.generate(encoded, [start], **options)[0].sequences_ids[0])

    decode(2)
    few, many = (timed(lambda number=number: decode(number)) for number in (2, 2 + tokens))
    count = decode(2 + tokens) - decode(2)
    return loaded, dict.fromkeys(SECONDS, seconds), (many - few) / count


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def memory_mb(field: str) -> float:
    """Return a figure of this process in MB; ``VmHWM``, unlike ru_maxrss, is not its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024 / 1e6


def main() -> None:
    program, folder, precision, tokens, threads = sys.argv[1:]
    measure = time_ours if program == OURS else time_ctranslate2
    loaded, encoding, token = measure(Path(folder), precision, int(tokens), int(threads))
    encoder = [1000 * encoding[seconds] for seconds in SECONDS]
    print(json.dumps([*encoder, 1000 * token, loaded, memory_mb("VmHWM")]))


if __name__ == "__main__":
    main()
