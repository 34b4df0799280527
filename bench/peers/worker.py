"""A contestant's own process: answers questions on a pipe, one JSON line each.

It waits blocked between questions. ``python -m peers.worker SUBJECT CONTESTANT WEIGHTS SETUP``,
SETUP the fields of ``Setup`` in JSON.
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

from peers.contestant import CONTESTANTS, Contestant, Setup
from peers.subject import ENCODER, Subject
from peers.way import Way

KILOBYTE = 1024  # as /proc counts them
Encode = Callable[[np.ndarray], np.ndarray]


def main() -> None:
    folder, name, weights, options = sys.argv[1:]
    subject, setup = Subject.load(Path(folder)), Setup(**json.loads(options))
    with answers() as answer:
        entry = CONTESTANTS[name]
        encode = load_encoder(subject, setup)
        forget_peak()
        start_bytes = peak_bytes()
        contestant = entry.build(subject, weights, setup)
        answer({"ready": True})
        for line in sys.stdin:
            question = json.loads(line)
            if question["do"] == "stop":
                answer({"peak_bytes": peak_bytes(), "start_bytes": start_bytes})
                break
            if question["do"] == "calls":
                memory = subject.read_input(subject.inputs[len(subject.inputs) // 2])
                memory = memory if encode is None else encode(memory)
                seconds = contestant.time_calls(memory, question["nodes"], question["repeats"])
                answer({"seconds": seconds, "frames": len(memory)})
            else:
                way = Way(**question["way"])
                answer(decode(subject, setup, encode, contestant, way, question["names"]))


@contextmanager
def answers() -> Iterator[Callable[[dict], None]]:
    """Answers go to the pipe that stdout was; what libraries print goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: dict) -> None:
        print(json.dumps(message), file=pipe, flush=True)

    try:
        yield answer
    except Exception as error:
        answer(
            {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        )
        raise


def forget_peak() -> None:
    """Let the peak begin anew at what is held now, where Linux allows it: imports are over."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Most memory that this process has held since ``forget_peak``.

    Not ``ru_maxrss``: a child begins with that of the process that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * KILOBYTE


def load_encoder(subject: Subject, setup: Setup) -> Encode | None:
    """Our encoder, float32 for everybody, where inputs are audio."""
    if subject.encoder_conf is None:
        return None
    import torch

    from espnet_medusa.files.checkpoint import load_weights
    from espnet_medusa.model.whisper_encoder import HFWhisperEncoder

    torch.set_num_threads(setup.threads)
    encoder = HFWhisperEncoder(**subject.encoder_conf)
    encoder.load_state_dict(load_weights(subject.folder / ENCODER))
    encoder = encoder.to(setup.device).eval()

    def encode(samples: np.ndarray) -> np.ndarray:
        speech = torch.from_numpy(samples)[None].to(setup.device)
        lengths = torch.tensor([speech.size(1)], device=setup.device)
        with torch.no_grad():
            return encoder(speech, lengths)[0][0].cpu().numpy()

    return encode


def decode(
    subject: Subject,
    setup: Setup,
    encode: Encode | None,
    contestant: Contestant,
    way: Way,
    names: Sequence[str],
) -> dict:
    """One measurement: seconds of the encoder and of decoding, and what came out."""
    inputs = [subject.read_input(name) for name in names]
    started = time.perf_counter()
    memories = inputs if encode is None else [encode(samples) for samples in inputs]
    encoded = time.perf_counter()
    decoded = contestant.decode(way, names, memories)
    if setup.device == "cuda":
        import torch

        torch.cuda.synchronize()
    ended = time.perf_counter()
    return {
        "encoder_seconds": encoded - started if encode else 0.0,
        "decoder_seconds": ended - encoded - decoded.excluded_seconds,
        **asdict(decoded),
    }


if __name__ == "__main__":
    main()
