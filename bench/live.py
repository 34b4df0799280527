"""Compare live systems: word errors, delays of words, calls, time and memory.

    python bench/live.py --whisper openai/whisper-base --trans 'test-clean/*/*/*.trans.txt'

measures ours. For the other systems, with converted weights of the same model:

    git clone https://github.com/ufal/whisper_streaming peers/whisper_streaming
    git clone https://github.com/ufal/SimulStreaming peers/SimulStreaming
    python -m venv peers/venv
    peers/venv/bin/pip install faster-whisper whisperlivekit librosa tiktoken omnisteval
    python bench/live.py ... --peers peers --ctranslate2 FOLDER --openai base.pt

A stream is a chapter of LibriSpeech, or a data directory; its utterances are joined. Systems take
turns stream by stream, each in a process of its own, which a virtual clock feeds at the pace of
speech (``live_systems/base.py``). ESPnet's windows need ESPnet 202611. ``--records`` keeps the
events of finished turns, so the same command resumes, even with more systems or streams.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import yaml
from contestants.client import last_line
from live_delays import confirmed_words
from live_report import NOTES, WITHOUT, YAAL, measure, plot, write_table
from live_streams import Stream, StreamReader, choose_sources
from live_systems.base import Event, Files, Setting
from live_systems.settings import AGREEMENT, ATTENTION, OF_PEERS, SETTINGS, SYSTEMS, ours
from machine import describe_machine, machine_name

from espnet_medusa.data.command_line import positive, run_main
from espnet_medusa.data.errors import InputError

BENCH = Path(__file__).resolve().parent
RESULTS = BENCH / "results" / "live"
RATE_HZ, MILLI = 16000, 1000
Turn = tuple[Stream, list[Event], float]  # and the peak memory in MB


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--whisper", required=True, help="our model: a name or folder of Hugging Face")
    add("--name", help="name of the model in the page; default: the end of --whisper")
    add("--peers", type=Path, help="folder with venv, whisper_streaming and SimulStreaming")
    add("--ctranslate2", default="", help="the model for faster-whisper")
    add("--openai", default="", help="the model for openai-whisper, such as base.pt")
    add("--trans", help="pattern of LibriSpeech's .trans.txt files")
    add("--chapters", type=positive, default=4, help="number, evenly chosen")
    add("--data_dir", nargs="+", type=Path, default=[], help="folders with wav.scp and text")
    add("--minutes", type=float, default=2.5, help="of each stream")
    add("--systems", nargs="+", choices=[*SYSTEMS], default=[*SYSTEMS])
    add("--set", nargs="+", default=[], help="more rows of ours: OPTION=VALUE,... of live")
    add("--threads", type=positive, default=2)
    add("--records", type=Path, help="folder; default: a temporary one")
    add("--output", type=Path, help="page; default: bench/results/live/MACHINE.md")
    return parser


def more_settings(words: Iterable[str]) -> list[Setting]:
    """Return settings of ours with other live options."""
    found = []
    for pairs in words:
        live = {name: yaml.safe_load(value) for name, _, value in
                (pair.partition("=") for pair in pairs.split(","))}  # fmt: skip
        update_s = live.get("update_seconds", 0.5)
        policy = ATTENTION if live.get("live_policy") == "attention" else AGREEMENT
        found.append(ours(policy, update_s, pairs, live=live))
    return found


class Systems:
    """Runs systems on streams, each turn in a process of its own.

    ``left_out``: why systems are missing, by setting.
    """

    def __init__(self, args: argparse.Namespace, records: Path):
        peers = "" if args.peers is None else str(args.peers.resolve())
        weights = (path and str(Path(path).resolve()) for path in (args.ctranslate2, args.openai))
        whisper = args.whisper
        whisper = str(Path(whisper).resolve()) if Path(whisper).exists() else whisper
        self.files, self.threads = Files(whisper, *weights, peers), args.threads
        self.records, self.left_out = records.resolve(), {}

    def run(self, setting: Setting, stream: Stream) -> Turn | None:
        """Return the events of a stream; None: the system fails."""
        if setting.system in OF_PEERS and not self.files.peers:
            self.left_out[setting.name] = "--peers is not given"
        if setting.name in self.left_out:
            return None
        folder = self.records / "".join(c if c.isalnum() else "_" for c in setting.name)
        folder.mkdir(parents=True, exist_ok=True)
        answer, log = folder / f"{stream.name}.json", folder / "log"
        asked, samples = folder / f"{stream.name}.request", self.records / f"{stream.name}.npy"
        request = {"files": asdict(self.files), "setting": asdict(setting)}
        request |= {"threads": self.threads, "samples": str(samples), "rate_hz": RATE_HZ}
        text = json.dumps(request | {"count": len(stream.samples)})
        if not answer.is_file() or asked.read_text(encoding="utf-8") != text:
            answer.unlink(missing_ok=True)
            asked.write_text(text, encoding="utf-8")
            np.save(samples, stream.samples)
            command = ["-m", "live_systems.worker", str(asked), str(answer)]
            with log.open("w", encoding="utf-8") as output:
                done = subprocess.run(
                    [self._python(setting), *command],
                    stdout=output,
                    stderr=output,
                    env=self._environment(setting),
                )
            if done.returncode:
                self.left_out[setting.name] = last_line(log)
                return None
        found = json.loads(answer.read_text(encoding="utf-8"))
        return stream, [Event(**event) for event in found["events"]], found["peak_mb"]

    def _python(self, setting: Setting) -> str:
        of_peer = setting.system in OF_PEERS
        return str(Path(self.files.peers, "venv", "bin", "python")) if of_peer else sys.executable

    def _environment(self, setting: Setting) -> dict[str, str]:
        paths = [str(BENCH)] if setting.system in OF_PEERS else [str(BENCH), str(BENCH.parent)]
        if setting.system not in OF_PEERS:
            paths.append(os.environ.get("PYTHONPATH", ""))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        return os.environ | threads | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}

    def long_yaal(self, setting: Setting, turns: Sequence[Turn]) -> dict[str, float]:
        """Return OmniSTEval's LongYAAL in s; empty without OmniSTEval, and for a whole file."""
        command = Path(self.files.peers, "venv", "bin", "omnisteval")
        if not (setting.is_live and self.files.peers and command.is_file()):
            return {}
        with tempfile.TemporaryDirectory() as path:
            folder = Path(path)
            write_for_omnisteval(turns, folder)
            files = {"speech_segmentation": "segments.json", "ref_sentences_file": "references",
                     "hypothesis_file": "hypotheses.jsonl", "output_folder": "scores"}  # fmt: skip
            words = [word for name, file in files.items() for word in (f"--{name}", folder / file)]
            command = [command, "longform", "--word_level", "--no_quality", *words]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                self.left_out[YAAL] = (done.stderr.strip().splitlines() or ["omnisteval fails"])[-1]
                return {}
            lines = (folder / "scores" / "scores.tsv").read_text().splitlines()
        scores = dict(line.split("\t")[:2] for line in lines)
        names = {YAAL: "LongYAAL (CA)", f"{WITHOUT}: {YAAL}": "LongYAAL (CU)"}
        return {name: float(scores[theirs]) / MILLI for name, theirs in names.items()}


def write_for_omnisteval(turns: Sequence[Turn], folder: Path) -> None:
    """Write utterances, references and confirmed words with their times in ms."""
    segments, references, hypotheses = [], [], []
    for stream, events, _ in turns:
        words = confirmed_words(events)
        for start_s, length_s, text in stream.spans:
            segments.append({"wav": stream.name, "offset": start_s, "duration": length_s})
            references.append(text)
        hypotheses.append({
            "source": stream.name, "prediction": " ".join(word for word, _ in words),
            "delays": [MILLI * event.audio_s for _, event in words],
            "elapsed": [MILLI * event.ready_s for _, event in words],
            "source_length": MILLI * len(stream.samples) / RATE_HZ,
        })  # fmt: skip
    (folder / "segments.json").write_text(json.dumps(segments), encoding="utf-8")
    (folder / "references").write_text("\n".join(references) + "\n", encoding="utf-8")
    lines = "".join(json.dumps(one) + "\n" for one in hypotheses)
    (folder / "hypotheses.jsonl").write_text(lines, encoding="utf-8")


def take_turns(
    systems: Systems, settings: Sequence[Setting], streams: Iterable[Stream]
) -> dict[str, list[Turn]]:
    """Return the turns of each setting, by its name; each stream begins with another setting."""
    turns: dict[str, list[Turn]] = {setting.name: [] for setting in settings}
    for number, stream in enumerate(streams):
        first = number % len(settings)
        for setting in [*settings[first:], *settings[:first]]:
            turn = systems.run(setting, stream)
            if turn is None:
                print(f"{setting.name}: left out: {systems.left_out[setting.name]}", flush=True)
                continue
            turns[setting.name].append(turn)
            events = turn[1]
            seconds = sum(event.seconds for event in events)
            print(
                f"{stream.name}, {events[-1].audio_s:.0f} s: {setting.name}: {len(events)} updates "
                f"in {seconds:.0f} s, last word at {events[-1].ready_s:.0f} s",
                flush=True,
            )
    return turns


def work(args: argparse.Namespace) -> None:
    if not args.trans and not args.data_dir:
        raise InputError("no speech; give --trans or --data_dir")
    settings = [one for one in SETTINGS if one.system in args.systems] + more_settings(args.set)
    sources = choose_sources(args.trans, args.chapters, args.data_dir)
    reader = StreamReader(args.whisper, args.minutes)
    streams = [reader.read(name, path) for name, path in sources.items()]
    del reader
    audio_s = sum(len(stream.samples) for stream in streams) / RATE_HZ
    print(f"{len(streams)} streams, {audio_s:.0f} s of audio", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        systems = Systems(args, args.records or Path(temporary))
        turns = take_turns(systems, settings, streams)
        rows = [
            (one, measure(one, turns[one.name]) | systems.long_yaal(one, turns[one.name]))
            for one in settings
            if len(turns[one.name]) == len(streams)
        ]
    write(args, rows, systems.left_out, streams)


def write(
    args: argparse.Namespace, rows: list, left_out: dict[str, str], streams: Sequence[Stream]
) -> None:
    machine = describe_machine("cpu", args.threads)
    output = args.output or RESULTS / f"{machine_name('cpu')}.md"
    output.parent.mkdir(parents=True, exist_ok=True)
    audio_s = sum(len(stream.samples) for stream in streams) / RATE_HZ
    names = ", ".join(stream.name for stream in streams)
    about = (
        f"{args.name or Path(args.whisper).name}; {machine['processor']}, {args.threads} threads; "
        f"{len(streams)} streams, {audio_s:.0f} s of audio: {names}."
    )
    missing = "".join(f"\nLeft out: {name}: {reason}.\n" for name, reason in left_out.items())
    image = output.with_suffix(".png")
    text = f"# Live systems\n\n{about}\n\n{write_table(rows)}\n![Delay and WER]({image.name})\n\n"
    output.write_text(f"{text}{NOTES}{missing}", encoding="utf-8")
    record = {
        "machine": machine, "streams": [stream.name for stream in streams], "audio_s": audio_s,
        "rows": [{"setting": asdict(one), "figures": figures} for one, figures in rows],
        "left_out": left_out,
    }  # fmt: skip
    output.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if rows:
        plot(rows, image)
    print(write_table(rows) + missing)
    print(output)


def main(cmd: Sequence[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    run_main("live.py", lambda: work(args))


if __name__ == "__main__":
    main()
