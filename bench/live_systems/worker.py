"""A live system's process: ``python -m live_systems.worker REQUEST ANSWER``, files in JSON.

The request has ``files``, ``setting``, ``threads``, ``samples`` (a .npy file) and ``rate_hz``. The
answer has the events of the stream and the process's peak memory in MB.
"""

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from one_shape import memory_mb

from live_systems.base import Files, Setting, run_stream
from live_systems.settings import SYSTEMS

WARM_UP_S = 3.0


def run(request: dict) -> dict:
    setting, rate_hz = Setting(**request["setting"]), request["rate_hz"]
    module, name = SYSTEMS[setting.system].split(".")
    kind = getattr(importlib.import_module(f"live_systems.{module}"), name)
    system = kind(Files(**request["files"]), setting, request["threads"])
    samples = np.load(request["samples"])
    run_stream(system, samples[: round(WARM_UP_S * rate_hz)], rate_hz)
    events = run_stream(system, samples, rate_hz)
    return {"events": [*map(asdict, events)], "peak_mb": memory_mb("VmHWM")}


if __name__ == "__main__":
    asked, answer = map(Path, sys.argv[1:])
    text = json.dumps(run(json.loads(asked.read_text(encoding="utf-8"))))
    partial = answer.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(answer)
