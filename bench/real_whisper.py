"""Real Whisper on real speech, samples to text: ours, with and without drafts, and faster-whisper.

Each way has a process of its own with its own features and encoder; utterance after utterance, all
ways in turns. WER is that after Whisper's normalizer; texts are compared as they are.

    espnet-medusa-convert openai/whisper-base exp/base --language en
    python bench/real_whisper.py --model exp/base --draft_model openai/whisper-tiny.en \
        --faster_whisper Systran/faster-whisper-base --data_dir dump/raw/test_clean
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import jiwer
import numpy as np
import torch
from inputs import read_utterances
from machine import describe_machine
from tqdm import tqdm
from whisper.normalizers import EnglishTextNormalizer

from espnet_medusa.report.tables.markdown import markdown_table

WINDOW_S = 30  # ours refuses what is longer
FASTER_WHISPER = "faster-whisper"
_model: Any = None  # of the process that decodes


@dataclass(frozen=True)
class Way:
    """How to decode.

    Attributes:
        precision: Numbers.
        beam_size: 1 is greedy search.
        drafts: Whether the draft model takes part.
        program: Who decodes.
    """

    precision: str
    beam_size: int = 1
    drafts: bool = False
    program: str = "ours"

    def label(self, draft_model: str | None) -> str:
        """For the table."""
        search = "greedy" if self.beam_size == 1 else f"beam {self.beam_size}"
        drafts = f", {Path(draft_model).name} drafts" if self.drafts else ""
        return f"{self.program}, {self.precision}, {search}{drafts}"


@dataclass(frozen=True)
class Outcome:
    """Of one utterance; counts and parts of the time are ours alone."""

    text: str
    seconds: float
    decoder_seconds: float | None = None
    calls: int | None = None
    tokens: int | None = None


def load_ours(way: Way, model: Path, draft_model: str | None, threads: int) -> None:
    """In the process that decodes: an experiment, and what drafts for it."""
    global _model
    from espnet_medusa import Speech2Text

    torch.set_num_threads(threads)
    greedy = way.beam_size == 1
    options = {"search": "greedy"} if greedy else {"beam_size": way.beam_size}
    if way.drafts:
        options |= {"draft_model": draft_model, "drafter": "model"}
    else:
        options["draft_depth"] = 0
    _model = Speech2Text(
        model / "config.yaml",
        model / "model.pth",
        decoder_precision=way.precision,
        ctc_weight=0.0,
        lm_weight=0.0,
        maxlenratio=-440,
        **options,
    )
    _model.release_weights()


def decode_ours(speech: np.ndarray) -> Outcome:
    """Samples to text."""
    started = time.perf_counter()
    results = _model(speech)
    counts = _model.statistics
    return Outcome(
        results[0][0] if results else "",
        time.perf_counter() - started,
        counts.decoder_seconds,
        counts.decoder_calls,
        counts.tokens,
    )


def load_faster_whisper(way: Way, model: str, threads: int) -> None:
    """In the process that decodes: its own features, encoder and search."""
    global _model
    from faster_whisper import WhisperModel

    loaded = WhisperModel(model, "cpu", compute_type=way.precision, cpu_threads=threads)
    _model = partial(
        loaded.transcribe,
        language="en",
        beam_size=way.beam_size,
        temperature=0.0,
        without_timestamps=True,
        condition_on_previous_text=False,
    )


def decode_faster_whisper(speech: np.ndarray) -> Outcome:
    """Samples to text."""
    started = time.perf_counter()
    segments, _ = _model(speech.astype(np.float32))
    text = " ".join(segment.text for segment in segments)
    return Outcome(text, time.perf_counter() - started)


def start(way: Way, args: argparse.Namespace) -> ProcessPoolExecutor:
    """A process that decodes in one way."""
    load, given = load_ours, (args.model, args.draft_model, args.threads)
    if way.program == FASTER_WHISPER:
        load, given = load_faster_whisper, (args.faster_whisper, args.threads)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, initializer=load, initargs=(way, *given))


def measure(
    workers: Mapping[Way, ProcessPoolExecutor], speeches: Sequence[np.ndarray]
) -> dict[Way, list[Outcome]]:
    """All utterances in all ways, in turns; the first one twice, as loading goes on in it."""
    outcomes: dict[Way, list[Outcome]] = {way: [] for way in workers}
    for number, speech in enumerate(tqdm([speeches[0], *speeches], unit="utt")):
        for way, worker in workers.items():
            decode = decode_faster_whisper if way.program == FASTER_WHISPER else decode_ours
            outcome = worker.submit(decode, speech).result()
            if number:
                outcomes[way].append(outcome)
    return outcomes


def row(way: Way, found: Sequence[Outcome], plain: Sequence[Outcome] | None, texts) -> dict:
    """Figures of a way; texts are compared with those without drafts."""
    normalize = EnglishTextNormalizer()
    references = [normalize(text) for text in texts]
    errors = jiwer.wer(references, [normalize(one.text) for one in found])
    figures = asdict(way) | {
        "ms": 1000 * median(one.seconds for one in found),
        "seconds": sum(one.seconds for one in found),
        "wer": 100 * errors,
    }
    if found[0].calls is not None:
        calls = sum(one.calls for one in found)
        figures |= {
            "decoder_ms": 1000 * median(one.decoder_seconds for one in found),
            "encoder_ms": 1000 * median(one.seconds - one.decoder_seconds for one in found),
            "calls": mean(one.calls for one in found),
            "tokens_per_call": sum(one.tokens for one in found) / calls,
        }
    if plain is not None:
        same = sum(a.text == b.text for a, b in zip(found, plain, strict=True))
        figures["same_text"] = f"{same}/{len(found)}"
    return figures


COLUMNS = {  # title: figure and how it is written
    "ms an utterance": ("ms", "{:.0f}"),
    "encoder and features": ("encoder_ms", "{:.0f}"),
    "decoder": ("decoder_ms", "{:.0f}"),
    "calls": ("calls", "{:.1f}"),
    "tokens a call": ("tokens_per_call", "{:.2f}"),
    "WER": ("wer", "{:.1f}"),
    "same text": ("same_text", "{}"),
}


def table(rows: Mapping[str, dict]) -> str:
    """Markdown; a cell is empty where a way has no such figure."""
    cells = [
        [label, *(form.format(of[name]) if name in of else "" for name, form in COLUMNS.values())]
        for label, of in rows.items()
    ]
    return markdown_table(["", *COLUMNS], cells, text_columns=1)


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="espnet-medusa-convert made it")
    parser.add_argument("--draft_model", help="as the decode option")
    parser.add_argument("--faster_whisper", help="the same weights: CTranslate2 folder or name")
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp and text")
    parser.add_argument("--num_utterances", type=int, default=100)
    parser.add_argument("--precisions", nargs="+", default=["int8"])
    parser.add_argument("--beam_sizes", nargs="+", type=int, default=[1])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("bench/results/real_whisper"))
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    """Run the command line ``cmd`` (default: this process's)."""
    args = get_parser().parse_args(cmd)
    utterances = [
        utterance
        for utterance in read_utterances(args.data_dir, args.num_utterances)
        if utterance.seconds <= WINDOW_S
    ]
    ways = []
    for precision in args.precisions:
        for beam in args.beam_sizes:
            ways.append(Way(precision, beam))
            ways += [Way(precision, beam, drafts=True)] if args.draft_model else []
            ways += [Way(precision, beam, program=FASTER_WHISPER)] if args.faster_whisper else []
    workers = {way: start(way, args) for way in ways}
    outcomes = measure(workers, [utterance.speech for utterance in utterances])
    texts, rows = [utterance.text for utterance in utterances], {}
    for way, found in outcomes.items():
        plain = outcomes[Way(way.precision, way.beam_size)] if way.drafts else None
        rows[way.label(args.draft_model)] = row(way, found, plain, texts)
    machine = describe_machine("cpu", args.threads)
    seconds = sum(utterance.seconds for utterance in utterances)
    about = (
        f"{args.model.name}, {len(utterances)} utterances of {args.data_dir.name}, "
        f"{seconds / len(utterances):.1f} s on average, one after the other; medians; "
        f"{machine['processor']}, {args.threads} threads.\n\n"
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    markdown = about + table(rows)
    args.output.with_suffix(".md").write_text(markdown, encoding="utf-8")
    report = {"machine": machine, "audio_seconds": seconds, "rows": rows}
    args.output.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    print(markdown)


if __name__ == "__main__":
    main()
