"""Compare programs at their own defaults on speech in many conditions (``conditions.py``).

    python bench/compare_conditions.py --conditions DIR --whisper EXP

Programs take turns on each clip. The table has a row for each condition: word error rates with
bootstrap intervals, inserted words, looped texts, and milliseconds per clip. Conditions
``no_speech_*`` have only inserted words; there faster-whisper also runs with its --vad_filter.
Every measurement is written to a journal at once: the same command continues an interrupted run.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from compare import RESULTS
from contestants.base import FASTER_WHISPER, Result, Setup
from contestants.client import Client
from contestants.make_subjects import speech_subject
from contestants.ways import DEFAULTS, DEFAULTS_VAD, INT8, OURS, Way
from figures import word_errors
from inputs import Listed, Utterance, enter_experiment, list_utterances
from machine import describe_machine, machine_name
from runner import Journal, Session, measure

from espnet_medusa.audio.reader import read_audio, resample
from espnet_medusa.bin.command_line import positive, run_main
from espnet_medusa.errors import InputError
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.window import compression_ratio
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.report.measures import estimate_cell, ratio_of_sums

MILLI, RATE_HZ = 1000.0, 16000
NO_SPEECH = "no_speech_"
THEIRS, THEIRS_VAD = (Way(FASTER_WHISPER, INT8, search) for search in (DEFAULTS, DEFAULTS_VAD))
MINE = Way(OURS, INT8, DEFAULTS)
TITLES = (
    "condition", "clips", "WER [%]", "ours", "inserted words", "ours", "looped texts", "ours",
    "ms per clip", "ours", "speedup",
)  # fmt: skip
NO_SPEECH_TITLES = (
    "no speech", "files", "words per minute", "with --vad_filter", "ours", "ms per file", "ours",
)  # fmt: skip


def read_conditions(folder: Path, names: Sequence[str] | None, count: int | None) -> dict:
    """Read the clips of each condition; ids begin with the condition.

    Raises:
        InputError: There is no such condition.
    """
    found = [path.parent for path in sorted(folder.glob("*/wav.scp"))]
    missing = {*(names or ())} - {path.name for path in found}
    if missing or not found:
        raise InputError(
            f"{folder}: no condition {', '.join(missing)}; make them with bench/conditions.py"
        )
    return {
        path.name: [read_clip(path.name, listed) for listed in list_utterances(path, count)]
        for path in found
        if names is None or path.name in names
    }


def read_clip(condition: str, listed: Listed) -> Utterance:
    """Read an utterance at 16 kHz, with an id that begins with its condition."""
    speech, rate_hz = read_audio(listed.entry)
    speech = resample(speech, rate_hz, RATE_HZ).astype(np.float32)
    return Utterance(f"{condition}__{listed.id}", speech, len(speech) / RATE_HZ, listed.text)


def speech_row(name: str, clips: Sequence[Utterance], results: Mapping, seconds: Mapping) -> list:
    """Return the cells of a condition with speech, for both programs."""
    cells = [name, str(len(clips))]
    rates, inserted, looped = [], [], []
    for way in (THEIRS, MINE):
        texts = [results[way][clip.id].text for clip in clips]
        errors = word_errors([clip.text for clip in clips], texts)
        rate = ratio_of_sums(
            np.array([100 * one.errors for one in errors]), np.array([one.words for one in errors])
        )
        rates.append(estimate_cell(rate))
        inserted.append(str(sum(one.insertions for one in errors)))
        looped.append(str(sum(map(is_looped, texts))))
    cells += rates + inserted + looped
    theirs, mine = (np.array([seconds[way][clip.id] for clip in clips]) for way in (THEIRS, MINE))
    cells += [f"{MILLI * one.mean():.0f}" for one in (theirs, mine)]
    return [*cells, estimate_cell(ratio_of_sums(theirs, mine))]


def quiet_row(name: str, clips: Sequence[Utterance], results: Mapping, seconds: Mapping) -> list:
    """Return the cells of a condition without speech."""
    minutes = sum(clip.seconds for clip in clips) / 60
    cells = [name.removeprefix(NO_SPEECH), str(len(clips))]
    for way in (THEIRS, THEIRS_VAD, MINE):
        words = sum(len(results[way][clip.id].text.split()) for clip in clips)
        cells.append(f"{words / minutes:.1f}")
    for way in (THEIRS, MINE):
        cells.append(f"{MILLI * np.mean([seconds[way][clip.id] for clip in clips]):.0f}")
    return cells


def is_looped(text: str) -> bool:
    """Return whether openai-whisper's threshold calls a text repetitive."""
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
        subject = speech_subject(Path(path), exp_dir.name, exp_dir, None, clips, long=True)
        with Session(lambda way: Client(subject.folder, *way.process, setup), journal) as session:
            measure(session, [THEIRS, MINE], subject.turns([1]))
            quiet = [clip.id for clip in clips if clip.id.startswith(NO_SPEECH)]
            measure(session, [THEIRS_VAD], [(1, [name]) for name in quiet])
    if journal.left_out:
        raise InputError("; ".join(f"{who}: {why}" for who, why in journal.left_out.items()))
    results: dict[Way, dict[str, Result]] = {way: {} for way in (THEIRS, THEIRS_VAD, MINE)}
    seconds: dict[Way, dict[str, float]] = {way: {} for way in results}
    for row in journal.rows:
        results[row.way][row.names[0]] = row.timed.results[0]
        seconds[row.way][row.names[0]] = row.timed.seconds
    spoken = {name: group for name, group in conditions.items() if not name.startswith(NO_SPEECH)}
    silent = {name: group for name, group in conditions.items() if name not in spoken}
    tables = [
        (TITLES, [speech_row(name, group, results, seconds) for name, group in spoken.items()]),
        (
            NO_SPEECH_TITLES,
            [quiet_row(name, group, results, seconds) for name, group in silent.items()],
        ),
    ]
    parts = [
        f"# {exp_dir.name}: programs at their defaults, {machine['processor']}, "
        f"{args.threads} threads\n"
    ]
    parts += [markdown_table([*titles], rows) for titles, rows in tables if rows]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    parts.append(
        "- The first column of each pair is faster-whisper (int8, beam 5, fallback); ours is "
        "`espnet-medusa-transcribe` without options.\n"
        "- In square brackets: 95% bootstrap interval over clips. WER after Whisper's English "
        "normalizer. Looped: compression ratio above 2.4.\n"
        f"- {versions}.\n"
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(parts), encoding="utf-8")
    print(output)


def main(cmd: Sequence[str] | None = None) -> None:
    """Run the command line ``cmd`` (default: this process's)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--conditions", type=Path, required=True, help="output of bench/conditions.py")
    add("--whisper", type=Path, required=True, help="experiment of a real Whisper")
    add("--names", nargs="+", help="conditions; default: all")
    add("--num_utterances", type=positive, help="at most so many of each condition")
    add("--threads", type=positive, default=2, help="CPU threads of each program")
    add("--machine", help="name of the results' folder; default: the processor")
    add("--results", type=Path, default=RESULTS, help="folder of the machines' folders")
    add("--output", type=Path, help="report; default: in the results' folder")
    args = parser.parse_args(cmd)
    run_main("compare_conditions", lambda: work(args))


if __name__ == "__main__":
    main()
