"""Compare programs at their own defaults on speech in many conditions (``conditions.py``).

    python bench/compare_conditions.py --conditions DIR --whisper EXP

Programs take turns on each clip. The report (.md and .json) has a row for each condition: word
error rates with bootstrap intervals, inserted words, looped texts, and milliseconds per clip.
Conditions ``no_speech_*`` have words per minute instead of errors; there faster-whisper also runs
with its --vad_filter. Each measurement is written to a journal immediately, so the same command
continues an interrupted run.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from compare import RESULTS
from contestants.base import CONDITIONS, FASTER_WHISPER, Setup, Timed
from contestants.client import Client
from contestants.make_subjects import speech_subject
from contestants.ways import DEFAULTS, DEFAULTS_VAD, INT8, OURS, Way
from figures import error_rate, ratio, word_errors
from inputs import Listed, Utterance, enter_experiment, list_utterances
from machine import describe_machine, machine_name
from report import make_report, write_report
from runner import Journal, Session, measure

from espnet_medusa.data.audio.reader import read_audio, resample
from espnet_medusa.data.command_line import positive, run_main
from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.window import compression_ratio

MILLI, RATE_HZ = 1000.0, 16000
NO_SPEECH = "no_speech_"
THEIRS, THEIRS_VAD = (Way(FASTER_WHISPER, INT8, search) for search in (DEFAULTS, DEFAULTS_VAD))
MINE = Way(OURS, INT8, DEFAULTS)
PROGRAMS = {"faster_whisper": THEIRS, "faster_whisper_vad": THEIRS_VAD, "ours": MINE}


def read_conditions(folder: Path, names: Sequence[str] | None, count: int | None) -> dict:
    """Read the clips of each condition; ids begin with the condition.

    Raises:
        InputError: There is no such condition.
    """
    folders = [path.parent for path in sorted(folder.glob("*/wav.scp"))]
    missing = {*(names or ())} - {path.name for path in folders}
    if missing or not folders:
        which = ", ".join(missing) or "at all"
        raise InputError(f"{folder}: no condition {which}; make them with bench/conditions.py")
    return {
        path.name: [read_clip(path.name, listed) for listed in list_utterances(path, count)]
        for path in folders
        if names is None or path.name in names
    }


def read_clip(condition: str, listed: Listed) -> Utterance:
    """Read an utterance at 16 kHz, with an id that begins with its condition."""
    speech, rate_hz = read_audio(listed.entry)
    speech = resample(speech, rate_hz, RATE_HZ).astype(np.float32)
    return Utterance(f"{condition}__{listed.id}", speech, len(speech) / RATE_HZ, listed.text)


def condition_row(
    name: str, clips: Sequence[Utterance], timed: Mapping[Way, Mapping[str, Timed]]
) -> dict[str, Any]:
    """Return the figures of a condition; the names of figures begin with the program."""
    quiet = name.startswith(NO_SPEECH)
    row = {
        "group": "no speech" if quiet else "speech",
        "condition": name.removeprefix(NO_SPEECH),
        "clips": len(clips),
    }
    for program, way in PROGRAMS.items():
        if quiet or way != THEIRS_VAD:
            figures = program_figures(clips, [timed[way][clip.id] for clip in clips], quiet)
            row |= {f"{program}_{figure}": value for figure, value in figures.items()}
    if not quiet:
        seconds = ([timed[way][clip.id].seconds for clip in clips] for way in (THEIRS, MINE))
        row["speedup"] = ratio(*seconds)
    return row


def program_figures(
    clips: Sequence[Utterance], timed: Sequence[Timed], quiet: bool
) -> dict[str, Any]:
    """Return the figures of a program on the clips of a condition with or without speech."""
    texts = [one.results[0].text for one in timed]
    figures = {"ms": MILLI * mean(one.seconds for one in timed)}
    if quiet:
        minutes = sum(clip.seconds for clip in clips) / 60
        words = sum(len(text.split()) for text in texts)
        return figures | {"words_per_minute": words / minutes}
    errors = word_errors([clip.text for clip in clips], texts)
    return figures | {
        "wer": error_rate(errors),
        "inserted": sum(one.insertions for one in errors),
        "looped": sum(map(is_looped, texts)),
    }


def is_looped(text: str) -> bool:
    """Return whether a text's compression ratio is above openai-whisper's threshold."""
    return compression_ratio(text) > LongFormOptions().compression_ratio_threshold


def work(args: argparse.Namespace) -> None:
    """Measure, and write the report.

    Raises:
        InputError: A condition, the model or the journal is not usable.
    """
    conditions = read_conditions(args.conditions.resolve(), args.names, args.num_utterances)
    exp_dir = args.whisper.resolve()
    folder = args.results / (args.machine or machine_name("cpu"))
    output = (args.output or folder / f"conditions_{exp_dir.name}.md").resolve()
    machine, setup = describe_machine("cpu", args.threads), Setup("cpu", args.threads)
    about = {"whisper": str(exp_dir), "setup": asdict(setup), "machine": machine["processor"]}
    journal = Journal(output.with_suffix(".jsonl"), about)
    enter_experiment(exp_dir)
    clips = [clip for group in conditions.values() for clip in group]
    with tempfile.TemporaryDirectory() as path:

        @cache
        def subject_folder() -> Path:  # only written if a measurement is missing
            subject = speech_subject(Path(path), exp_dir.name, exp_dir, None, clips, long=True)
            return subject.folder

        with Session(lambda way: Client(subject_folder(), *way.process, setup), journal) as session:
            measure(session, [THEIRS, MINE], [(1, [clip.id]) for clip in clips])
            quiet = [clip.id for clip in clips if clip.id.startswith(NO_SPEECH)]
            measure(session, [THEIRS_VAD], [(1, [name]) for name in quiet])
    if journal.left_out:
        raise InputError("; ".join(f"{who}: {why}" for who, why in journal.left_out.items()))
    timed = {way: {row.names[0]: row.timed for row in journal.of(way)} for way in PROGRAMS.values()}
    rows = [condition_row(name, group, timed) for name, group in conditions.items()]
    title = f"{exp_dir.name}: programs at their defaults"
    write_report(make_report(CONDITIONS, title, machine["processor"], machine, rows), output)
    print(output)


def main(cmd: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--conditions", type=Path, required=True, help="output of bench/conditions.py")
    add("--whisper", type=Path, required=True, help="experiment of a real Whisper")
    add("--names", nargs="+", help="conditions; default: all")
    add("--num_utterances", type=positive, help="maximum number of clips of each condition")
    add("--threads", type=positive, default=2, help="CPU threads of each program")
    add("--machine", help="name of the results' folder; default: the processor")
    add("--results", type=Path, default=RESULTS, help="folder of the machines' folders")
    add("--output", type=Path, help="report; default: in the results' folder")
    args = parser.parse_args(cmd)
    run_main("compare_conditions", lambda: work(args))


if __name__ == "__main__":
    main()
