"""Long recordings: Whisper programs on the same weights, segments with times, text and seconds.

python local/join_chapters.py --data_dir data/test_clean --output_dir data/test_clean_chapters
python ../../../bench/long_audio.py --whisper exp_base/asr_vanilla --name base \\
    --data_dir data/test_clean_chapters --num_recordings 20 --weights int8

openai-whisper's ``transcribe``, faster-whisper's (one window after the other, and in batches) and
ours, at temperature 0 or with --fallback, otherwise with their own defaults; each in a process of
its own, recording after recording in turns. Writes long_audio_NAME.{md,json,png} into
bench/results/MACHINE, with --no_seconds long_texts_NAME.{md,json}, with --fallback NAME_fallback.
What is measured is kept in --journal: the same command goes on where it was interrupted.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compare import RESULTS, SEARCHES
from inputs import enter_experiment, read_utterances
from long_audio_report import make_report, write_report
from machine import describe_machine, machine_name
from peers.client import Client, ContestantFailed
from peers.contestant import Setup
from peers.make_whisper_subject import make_whisper_subject
from peers.transcriber import BATCHED, OURS, SEQUENTIAL, TRANSCRIBERS, LongTask, LongTranscribed
from peers.way import DRAFTERS, Way
from peers.whisper_subject import WhisperSubject
from tqdm import tqdm

from espnet_medusa.errors import InputError
from espnet_medusa.inference.experiment import find_weights

PROGRAMS = [name for name, entry in TRANSCRIBERS.items() if entry.long]


@dataclass
class Transcriptions:
    """What everybody wrote, kept in a file.

    Attributes:
        journal: What was measured with, then a line for each recording and way.
        about: What is measured with.
        found: By way and recording.
        left_out: Why somebody is not there.

    Raises:
        InputError: The journal is of something else.
    """

    journal: Path
    about: dict[str, Any]
    found: dict[Way, dict[str, LongTranscribed]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.about = json.loads(json.dumps(self.about, default=str))
        if not self.journal.is_file():
            self._write(self.about)
            return
        text = self.journal.read_text(encoding="utf-8")
        if not text.endswith("\n"):
            self.journal.write_text(text + "\n", encoding="utf-8")
        first, *lines = text.splitlines() or [""]
        if _read(first) != self.about:
            raise InputError(
                f"{self.journal}: was measured with something else; remove it, or give another "
                "--journal"
            )
        for one in filter(None, map(_read, lines)):
            self._take(Way(**one["way"]), one["name"], LongTranscribed.read(one["found"]))

    def _take(self, way: Way, name: str, found: LongTranscribed) -> None:
        self.found.setdefault(way, {})[name] = found

    def add(self, way: Way, name: str, found: LongTranscribed) -> None:
        """One more, written down at once."""
        self._take(way, name, found)
        self._write({"way": asdict(way), "name": name, "found": asdict(found)})

    def _write(self, value: dict[str, Any]) -> None:
        with self.journal.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(value) + "\n")

    def lacks(self, way: Way, name: str) -> bool:
        """Whether it is still to do."""
        return name not in self.found.get(way, {})


def _read(line: str) -> dict[str, Any] | None:
    """A line of the journal; None: a process that was ended left half of one."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def make_ways(subject: WhisperSubject, args: argparse.Namespace) -> list[Way]:
    """All ways, search by search, in the order of tables."""
    ways = []
    for search in args.searches:
        for name in args.programs:
            entry = TRANSCRIBERS[name]
            asked = [one for one in entry.weights if one in (args.weights or entry.weights)]
            batch_sizes = [
                size
                for size in args.batch_sizes
                if (SEQUENTIAL if size == 1 else BATCHED) in entry.long
            ]
            drafters = ["", *(one for one in subject.drafters if one in args.drafters)]
            ways += [
                Way(name, weights, SEARCHES[search], batch_size, drafter)
                for weights in asked or entry.weights
                for batch_size in batch_sizes
                for drafter in (drafters if name == OURS else [""])
            ]
    return ways


def transcribe(
    subject: WhisperSubject,
    ways: Sequence[Way],
    setup: Setup,
    task: LongTask,
    results: Transcriptions,
) -> None:
    """All recordings in all ways, in turns of chance, but for those that are there.

    Who fails is left out from there on, with what was measured of it.
    """
    todo = [(name, way) for name in subject.inputs for way in ways if results.lacks(way, name)]
    clients: dict[tuple[str, str], Client] = {}
    gone: set[tuple[str, str]] = set()
    try:
        for name, way in tqdm(in_turns(todo), total=len(todo), unit="recording", mininterval=2.0):
            process = way.process
            if process in gone:
                continue
            try:
                if process not in clients:
                    clients[process] = Client(
                        subject.folder, *process, setup, worker="peers.speech_worker"
                    )
                found = clients[process].decode_long(way, name, task)
            except ContestantFailed as error:
                results.left_out[", ".join(process)] = str(error)
                gone.add(process)
            else:
                results.add(way, name, LongTranscribed.read(found))
    finally:
        for client in clients.values():
            client.end()


def in_turns(todo: Iterable[tuple[str, Way]]) -> list[tuple[str, Way]]:
    """Recording after recording, of each the ways in an order of chance."""
    by_name: dict[str, list[Way]] = {}
    for name, way in todo:
        by_name.setdefault(name, []).append(way)
    order = random.Random(0)
    return [(name, way) for name, ways in by_name.items() for way in order.sample(ways, len(ways))]


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whisper", type=Path, required=True, help="an experiment")
    parser.add_argument("--name", help="of it in tables; default: the folder's")
    parser.add_argument("--draft_model", help="as the decode option")
    parser.add_argument("--data_dir", type=Path, required=True, help="recordings and references")
    parser.add_argument("--num_recordings", type=int, help="spread over them; default: all")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--weights", nargs="+", help="types; of a program without: its own")
    parser.add_argument(
        "--drafters", nargs="*", choices=DRAFTERS, default=DRAFTERS, help="who drafts for ours"
    )
    parser.add_argument("--searches", nargs="+", choices=[*SEARCHES], default=[*SEARCHES])
    parser.add_argument(
        "--batch_sizes", nargs="+", type=int, default=[1, 8],
        help="windows together; 1: one after the other, as openai-whisper",
    )  # fmt: skip
    parser.add_argument("--word_timestamps", action="store_true", help="when each word is said")
    parser.add_argument(
        "--fallback", action="store_true",
        help="windows that fail are decoded again, hotter; default: temperature 0 alone",
    )  # fmt: skip
    parser.add_argument("--no_seconds", action="store_true", help="a busy machine: leave times out")
    parser.add_argument("--threads", type=int, default=2, help="of every program")
    parser.add_argument("--journal", type=Path, help="default: beside the report")
    parser.add_argument("--machine", help="name of the results' folder; default: the processor's")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


def run(args: argparse.Namespace) -> Path:
    """Measure and write; returns the report."""
    exp_dir, data_dir = args.whisper.resolve(), args.data_dir.resolve()
    name = args.name or exp_dir.name
    folder = (args.results / (args.machine or machine_name("cpu"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    kind, attempts = ["audio", "texts"][args.no_seconds], ["", "_fallback"][args.fallback]
    output = folder / f"long_{kind}_{name}{attempts}.md"
    weights = find_weights(exp_dir, "whisper")
    task = LongTask(args.word_timestamps, args.fallback)
    about = {
        "weights": str(weights), "changed": weights.stat().st_mtime, "data_dir": str(data_dir),
        "draft_model": args.draft_model, "task": asdict(task), "threads": args.threads,
        "versions": describe_machine("cpu", args.threads)["versions"],
    }  # fmt: skip
    results = Transcriptions((args.journal or output.with_suffix(".jsonl")).resolve(), about)
    draft = None if args.draft_model is None else Path(args.draft_model)
    draft_model = str(draft.resolve()) if draft and draft.exists() else args.draft_model
    utterances = read_utterances(data_dir, args.num_recordings)
    enter_experiment(exp_dir)
    with tempfile.TemporaryDirectory() as folder_of_subject:
        subject = make_whisper_subject(
            Path(folder_of_subject), name, exp_dir, draft_model, utterances, long=True
        )
        ways = make_ways(subject, args)
        transcribe(subject, ways, Setup("cpu", args.threads), task, results)
    found = {way: results.found[way] for way in ways if way in results.found}
    if not found:
        reasons = "; ".join(f"{who}: {why}" for who, why in results.left_out.items())
        raise InputError(f"nobody transcribed anything: {reasons or 'no program is left'}")
    machine = describe_machine("cpu", args.threads)
    report = make_report(
        name, utterances, found, results.left_out, machine,
        timed=not args.no_seconds, fallback=args.fallback,
    )  # fmt: skip
    write_report(report, output)
    return output


def main(cmd: Sequence[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    try:
        print(run(args))
    except InputError as error:
        sys.exit(f"long_audio: {error}")


if __name__ == "__main__":
    main()
