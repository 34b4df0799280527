"""Test a GPU in ten minutes: run the tests that need one, and measure how fast decoding is.

``make gpu GPU=OPTIONS`` runs one of

python bench/gpu.py
python bench/gpu.py --whisper exp/base --data_dir egs/librispeech/asr1/data/test_clean

Each part is a process of its own: the tests marked ``cuda``; decoder calls of Whisper's shapes
with random weights, by nodes and batch size, compared with transformers, eager and compiled, and
with CTranslate2; with --whisper a real Whisper from audio to text, by precision and batch size,
with word errors, also compared with faster-whisper and, with --assistant, with transformers'
assisted generation. Each part gets a share of --minutes; the report names rows that are left out,
such as those of programs that are not installed. The same command continues an interrupted run.
Nothing is downloaded.

Writes bench/results/GPU/{gpu.md,gpu_calls.png,gpu_batches.png} and gpu_PART.json for each part,
with a log. Exit status 3: something failed, which the report names. A small run on a CPU:

python bench/gpu.py --device cpu --shapes tiny --nodes 1 3 --batch_sizes 1 2
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from contestants.client import last_line
from contestants.make_subjects import WHISPER_SHAPES
from contestants.ways import AUTO, BFLOAT16, DRAFTERS, FLOAT16, FLOAT32, HEADS, MODEL
from gpu_parts.part import CALLERS, FAILED, GRACE_SECONDS, PROGRAMS, PartResults
from gpu_parts.report import write_report
from machine import describe_gpu, describe_machine, machine_name

from espnet_medusa.data.command_line import positive, run_main
from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.convert.experiment import CONFIG

BENCH = Path(__file__).resolve().parent
TESTS, CALLS, TEXTS = "tests", "calls", "texts"
MODULES = {TESTS: "cuda_tests", CALLS: "shape_calls", TEXTS: "audio_to_text"}
# Relative shares of time; a shape also has one for each of ``SHARE_LAYERS`` that it compiles.
TEST_SHARE, SHAPE_SHARE, TEXT_SHARE, SHARE_LAYERS = 2.0, 1.0, 5.0, 16
SHAPES = ["large-v3", "large-v3-turbo", "large-v2", "base"]
WEIGHTS = {"cuda": (FLOAT16, BFLOAT16, FLOAT32), "cpu": (FLOAT32, BFLOAT16)}
NO_WHISPER = "no real Whisper; give --whisper and --data_dir"
SECONDS = 60  # of a minute


@dataclass(frozen=True)
class Planned:
    """A part, before it runs."""

    name: str  # of its files
    kind: str  # ``TESTS``, ``CALLS`` or ``TEXTS``
    share: float  # relative to the shares of the other parts
    options: dict[str, Any] = field(default_factory=dict)  # options besides those of the command


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--whisper", type=Path, help="experiment of a real Whisper")
    add("--data_dir", type=Path, help="audio and texts for --whisper")
    assistant = "experiment of a smaller Whisper that drafts in transformers; none: no such row"
    add("--assistant", type=Path, help=assistant)
    add("--num_utterances", type=positive, default=200, help="spread over --data_dir")
    add("--parts", nargs="+", choices=[*MODULES], default=[*MODULES])
    add("--shapes", nargs="*", choices=[*WHISPER_SHAPES], default=SHAPES)
    add("--weights", nargs="+", help="default: all types of the device")
    add("--nodes", nargs="+", type=positive, default=[1, 11], help="nodes of a call")
    add("--batch_sizes", nargs="+", type=positive, default=[1, 4, 16, 64])
    programs = [*dict.fromkeys([*CALLERS, *PROGRAMS])]
    add("--contestants", nargs="+", choices=programs, help="default: all")
    drafters = [*(name for name in DRAFTERS if name != MODEL), AUTO]
    add("--drafters", nargs="*", choices=drafters, default=[HEADS, AUTO], help="for --whisper")
    add("--minutes", type=float, default=10.0, help="time limit of all parts")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--threads", type=positive, default=2, help="CPU threads")
    add("--tests", nargs="+", help="files and folders; default: all tests")
    add("--machine", help="name of the results' folder; default: the GPU")
    add("--results", type=Path, default=BENCH / "results")
    return parser


def work(args: argparse.Namespace) -> int:
    """Measure and write the report; return the exit status."""
    check(args)
    folder = (args.results / (args.machine or machine_name(args.device))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    about = describe_machine(args.device, args.threads)
    if args.device == "cuda":
        about["gpu"] = describe_gpu()
    parts, until = plan(args), time.monotonic() + SECONDS * args.minutes
    found: dict[str, PartResults] = {}
    if args.whisper is None and TEXTS in args.parts:
        found[TEXTS] = PartResults({}, left_out={"audio to text": NO_WHISPER})
    for number, part in enumerate(parts):
        left = max(until - time.monotonic(), 0.0)
        seconds = left * part.share / sum(one.share for one in parts[number:])
        output = folder / f"gpu_{part.name}.json"
        print(f"{part.name}: {seconds:.0f} s, {output.with_suffix('.log')}", flush=True)
        found[part.name] = run_part(part, args, output, seconds)
        for what, reason in found[part.name].failed.items():
            print(f"{part.name}: failed: {what}: {reason}", flush=True)
        write_report(found, about, folder)
    print(folder / "gpu.md")
    return FAILED if any(results.failed for results in found.values()) else 0


def check(args: argparse.Namespace) -> None:
    """Fill in the defaults of the device; raise InputError if an option is unusable."""
    if args.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda, but torch sees no GPU; try --device cpu --shapes tiny")
    allowed = WEIGHTS[args.device]
    args.weights = args.weights or [*allowed]
    for one in args.weights:
        if one not in allowed:
            raise InputError(f"--weights {one}; allowed on {args.device}: {', '.join(allowed)}")
    if (args.whisper is None) != (args.data_dir is None):
        raise InputError("--whisper, --data_dir: give both or none of them")
    needs = {"whisper": CONFIG, "assistant": CONFIG, "data_dir": "wav.scp"}
    for option, name in needs.items():
        path = getattr(args, option)
        needed = path and path / name
        if needed and not needed.is_file():
            raise InputError(f"--{option} {path}: no {needed.name}; give a folder that has one")
        setattr(args, option, path and path.resolve())


def plan(args: argparse.Namespace) -> list[Planned]:
    """Return the parts that are selected and possible, in order."""
    callers, programs = (
        [name for name in names if name in (args.contestants or names)]
        for names in (CALLERS, PROGRAMS)
    )
    parts = [Planned(TESTS, TESTS, TEST_SHARE)] if TESTS in args.parts else []
    for shape in args.shapes if CALLS in args.parts and callers else ():
        share = SHAPE_SHARE + WHISPER_SHAPES[shape][0] / SHARE_LAYERS
        options = {"shape": shape, "contestants": callers}
        parts.append(Planned(f"{CALLS}_{shape}", CALLS, share, options))
    if TEXTS in args.parts and programs and args.whisper is not None:
        name = f"{TEXTS}_{args.whisper.name}"
        parts.append(Planned(name, TEXTS, TEXT_SHARE, {"contestants": programs}))
    return parts


def run_part(part: Planned, args: argparse.Namespace, output: Path, seconds: float) -> PartResults:
    """Run a part until it ends or its time is over; return its rows and failures."""
    options = vars(args) | part.options | {"output": output, "seconds": seconds}
    module = f"gpu_parts.{MODULES[part.kind]}"
    command = [sys.executable, "-m", module, json.dumps(options, default=str)]
    paths = {"PYTHONPATH": [str(BENCH)], "LD_LIBRARY_PATH": cuda_libraries()}
    environment = os.environ | {
        name: os.pathsep.join(filter(None, [*own, os.environ.get(name)]))
        for name, own in paths.items()
    }
    environment |= {"OMP_NUM_THREADS": str(args.threads), "PYTHONUNBUFFERED": "1"}
    log, before = output.with_suffix(".log"), written(output)
    with log.open("w", encoding="utf-8") as lines:
        process = subprocess.Popen(
            command, stdout=lines, stderr=lines, env=environment, start_new_session=True
        )
        reason = None
        try:
            limit = seconds + 2 * GRACE_SECONDS  # a row that does not end by itself has failed
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            reason = f"had not ended after {limit:.0f} s"
        else:
            if status not in (0, FAILED):
                reason = last_line(log) or f"ended with status {status}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with its children
                process.wait()
    begun = written(output) != before  # otherwise an earlier run wrote the rows
    results = (PartResults.read(output) if begun else None) or PartResults({})
    if reason is not None:
        results.failed[part.name] = f"{reason}; see {log.name}"
        if begun:
            results.write(output)
    return results


def cuda_libraries() -> list[str]:
    """Return the folders of NVIDIA's Python packages, in which CTranslate2 does not search."""
    return sorted(map(str, Path(sysconfig.get_path("purelib"), "nvidia").glob("*/lib")))


def written(path: Path) -> int | None:
    """Return the time in ns when a file was written; None: it does not exist."""
    return path.stat().st_mtime_ns if path.exists() else None


def main(cmd: Sequence[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    run_main("gpu", lambda: work(args))


if __name__ == "__main__":
    main()
