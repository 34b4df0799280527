"""A contestant's process: reads requests from stdin and answers each with one line of JSON.

``python -m contestants.worker SUBJECT CONTESTANT WEIGHTS SETUP``; SETUP has the fields of ``Setup``
in JSON. The process sleeps between requests.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np

from contestants.base import CONTESTANTS, MEMORIES, RECORDINGS, MemoryDecoder, Setup, Timed
from contestants.subjects import ENCODER_FILE, MemorySubject, load_subject
from contestants.ways import Way
from espnet_medusa.espnet.upstream.hooks import make_imports_quiet

KILOBYTE = 1024  # unit of /proc
Encode = Callable[[np.ndarray], np.ndarray]


def main() -> None:
    make_imports_quiet()  # as our commands do
    folder, name, weights, options = sys.argv[1:]
    subject, setup = load_subject(Path(folder)), Setup(**json.loads(options))
    with answers() as answer:
        encode = None
        if subject.kind == MEMORIES:
            encode = load_encoder(subject, setup)
        else:
            import torch

            torch.set_num_threads(setup.threads)
        forget_peak()
        start_bytes = peak_bytes()
        contestant = CONTESTANTS[subject.kind][name].build(subject, weights, setup)
        answer({"ready": True})
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "stop":
                answer({"peak_bytes": peak_bytes(), "start_bytes": start_bytes})
                break
            if request["do"] == "calls":
                encoder_out = subject.read_input(subject.inputs[len(subject.inputs) // 2])
                encoder_out = encoder_out if encode is None else encode(encoder_out)
                seconds = contestant.time_calls(encoder_out, request["nodes"], request["repeats"])
                answer({"seconds": seconds, "frames": len(encoder_out)})
                continue
            way, names = Way(**request["way"]), request["names"]
            inputs = [subject.read_input(name) for name in names]
            if subject.kind == MEMORIES:
                timed = decode(contestant, encode, way, names, inputs)
            elif subject.kind == RECORDINGS:
                timed = contestant.transcribe_long(way, *inputs)
            else:
                timed = contestant.transcribe(way, *inputs)
            answer(asdict(timed))


@contextmanager
def answers() -> Iterator[Callable[[dict], None]]:
    """Send answers to stdout, and redirect all other output to stderr."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: dict) -> None:
        print(json.dumps(message), file=pipe, flush=True)

    try:
        yield answer
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        answer({"error": f"{type(error).__name__}: {reason}"})
        raise


def forget_peak() -> None:
    """Reset the peak of memory to the present memory, where Linux allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the peak of this process's memory since ``forget_peak``.

    ``ru_maxrss`` is not used, because a child starts with its parent's value.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * KILOBYTE


def load_encoder(subject: MemorySubject, setup: Setup) -> Encode | None:
    """Load our encoder in float32 for all contestants; None: inputs are memories."""
    if subject.encoder_conf is None:
        return None
    import torch

    from espnet_medusa.data.files.checkpoint import load_weights
    from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

    torch.set_num_threads(setup.threads)
    encoder = HFWhisperEncoder(**subject.encoder_conf)
    encoder.load_state_dict(load_weights(subject.folder / ENCODER_FILE))
    encoder.eval()

    @torch.no_grad()
    def encode(samples: np.ndarray) -> np.ndarray:
        speech = torch.from_numpy(samples)[None]
        return encoder(speech, torch.tensor([speech.size(1)]))[0][0].numpy()

    return encode


def decode(
    contestant: MemoryDecoder, encode: Encode | None, way: Way, names: Sequence[str],
    inputs: Sequence[np.ndarray],
) -> Timed:  # fmt: skip
    """Encode and decode inputs, and time both."""
    started = time.perf_counter()
    encoder_outs = inputs if encode is None else [encode(samples) for samples in inputs]
    encoded = time.perf_counter()
    results = contestant.decode(way, names, encoder_outs)
    seconds = time.perf_counter() - encoded
    return Timed(results, encoded - started if encode else 0.0, seconds)


if __name__ == "__main__":
    main()
