"""A transcriber's own process; questions as to ``worker.py``.

``python -m peers.speech_worker SUBJECT TRANSCRIBER WEIGHTS SETUP``, SETUP the fields of ``Setup``
in JSON.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from peers.contestant import Setup
from peers.transcriber import TRANSCRIBERS, LongTask
from peers.way import Way
from peers.whisper_subject import WhisperSubject
from peers.worker import answers


def main() -> None:
    folder, name, weights, options = sys.argv[1:]
    subject, setup = WhisperSubject.load(Path(folder)), Setup(**json.loads(options))
    torch.set_num_threads(setup.threads)
    with answers() as answer:
        transcriber = TRANSCRIBERS[name].build(subject, weights, setup)
        answer({"ready": True})
        for line in sys.stdin:
            question = json.loads(line)
            (name,) = question["names"]
            way, samples = Way(**question["way"]), subject.read_input(name)
            if question["do"] == "decode":
                answer(asdict(transcriber.transcribe(way, samples)))
            else:
                found = transcriber.transcribe_long(way, samples, LongTask(**question["task"]))
                answer(asdict(found))


if __name__ == "__main__":
    main()
