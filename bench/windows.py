"""Whisper's window or the audio alone: WER of experiments, and what their encoders take.

    cd egs/librispeech/asr1 && python ../../../bench/windows.py exp/asr_vanilla \\
        exp/asr_finetune_audio --data_dir dump/raw/test_clean --num_utterances 200 \\
        --output_dir exp/windows --output results/windows.md

Every experiment hears each utterance in the window that it was trained in and, whatever that is, as
the audio alone; greedy search without drafts, one by one. Milliseconds are the processor's, on one
thread, features included: other programs may run beside it. Utterances beyond the window are left
out. Every result is written down at once in OUTPUT_DIR, and a run that was interrupted goes on
where it was.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean

import torch
from inputs import Listed, Utterance, list_utterances
from machine import describe_machine
from tqdm import tqdm
from word_errors import WHISPER_CLEANER, word_errors

from espnet_medusa.bin.command_line import positive, run_main
from espnet_medusa.errors import InputError
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.inference.journal import Decoded, Journal, NBestEntry
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.model.whisper_encoder import AUDIO_WINDOW, encoder_options
from espnet_medusa.options import read_config
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.scoring.sclite import Counts

PRECISIONS = ("float32", "int8")
TITLES = (
    "experiment", "window", "precision", "WER [%]", "deleted", "inserted", "encoder [ms]",
    "decoder [ms]", "calls an utterance",
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """An experiment in one window and precision, encoder and decoder alike."""

    experiment: Path
    precision: str
    window: str

    def open(self, max_tokens: int) -> Speech2Text:
        """Its greedy search, whose encoder hears this window."""
        model = Speech2Text(
            self.experiment / "config.yaml", find_weights(self.experiment, "experiment"),
            search="greedy", draft_depth=0, ctc_weight=0.0, lm_weight=0.0, maxlenratio=-max_tokens,
            encoder_precision=self.precision, decoder_precision=self.precision,
        )  # fmt: skip
        if model.encoder.whisper is None:
            raise InputError(f"{self.experiment}: more than Whisper's encoder hears; not compared")
        model.encoder.whisper.window = self.window
        return model


def ways_of(experiment: Path) -> Iterator[Way]:
    """All of an experiment.

    Raises:
        InputError: It has no config, or another encoder than Whisper's.
    """
    path = experiment / "config.yaml"
    config = read_config(path, "give an experiment's folder")
    trained = encoder_options(config.get("encoder_conf"), f"{path}: encoder_conf").window_kind
    windows = dict.fromkeys((trained, AUDIO_WINDOW))
    for precision, window in product(PRECISIONS, windows):
        yield Way(experiment, precision, window)


@torch.no_grad()
def decode(model: Speech2Text, utterance: Utterance) -> Decoded:
    """One utterance; its statistics' seconds are the processor's."""
    started = time.process_time()
    memory, frames = model.model.encode(model.model.batch([utterance.speech]))
    encoded = time.process_time()
    prompt = model.model.make_prompts(memory, frames, [None])
    limits = model.model.limits
    [state] = model.search(memory, frames, prompt, limits)
    done = time.process_time()
    scorers = model.search.strategy.scoring.names
    decoding = model.model.writer.write(state, prompt[0].tolist(), scorers)
    nbest = [NBestEntry(text, [], [], "") for text, *_ in decoding.results]
    statistics = replace(
        decoding.statistics,
        audio_seconds=utterance.seconds,
        decoder_seconds=done - encoded,
        total_seconds=done - started,
    )
    return Decoded(utterance.id, nbest, statistics)


def decode_all(way: Way, listed: Sequence[Listed], max_tokens: int, journal: Journal) -> None:
    """What the journal lacks and the window holds; the first one twice, to warm up."""
    pending = [one for one in listed if one.id not in journal.decoded]
    if not pending:
        return
    model, warm = way.open(max_tokens), False
    for one in tqdm(pending, desc=f"{way.experiment.name}, {way.window}, {way.precision}"):
        utterance = one.read()
        if utterance.seconds > model.window_s:
            continue
        if not warm:
            decode(model, utterance)
            warm = True
        journal.add(decode(model, utterance))


def make_row(
    way: Way, decoded: Sequence[Decoded], references: Sequence[str], cleaner: str
) -> list[str]:
    """Cells of ``TITLES``; milliseconds are means of an utterance."""
    texts = [one.nbest[0].text if one.nbest else "" for one in decoded]
    counts = sum(word_errors(references, texts, cleaner), Counts())
    costs = [one.statistics for one in decoded]
    encoder = mean(cost.total_seconds - cost.decoder_seconds for cost in costs)
    return [
        way.experiment.name, way.window, way.precision, f"{counts.error_percent:.2f}",
        str(counts.deletions), str(counts.insertions), f"{1000 * encoder:.0f}",
        f"{1000 * mean(cost.decoder_seconds for cost in costs):.0f}",
        f"{mean(cost.decoder_calls for cost in costs):.1f}",
    ]  # fmt: skip


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiments", type=Path, nargs="+", help="folders with config and weights")
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp and text")
    parser.add_argument("--num_utterances", type=positive, help="take fewer, spread over the set")
    parser.add_argument("--max_tokens", type=positive, default=224, help="of a text that loops")
    parser.add_argument("--cleaner", default=WHISPER_CLEANER, help="of texts before WER")
    parser.add_argument("--output_dir", type=Path, required=True, help="of what is written at once")
    parser.add_argument("--output", type=Path, help="default: OUTPUT_DIR/results.md")
    return parser


def work(args: argparse.Namespace) -> None:
    """Decode, compare, write.

    Raises:
        InputError, ValueError: An experiment or the data is not usable.
    """
    torch.set_num_threads(1)
    names = [experiment.name for experiment in args.experiments]
    if len({*names}) < len(names):
        raise InputError(f"experiments: {', '.join(names)}; their folders need names of their own")
    listed, rows = list_utterances(args.data_dir, args.num_utterances), []
    for way in [way for experiment in args.experiments for way in ways_of(experiment)]:
        weights = find_weights(way.experiment, "experiment")
        made_with = {
            "data": str(args.data_dir.resolve()), "max_tokens": args.max_tokens,
            "weights": [str(weights.resolve()), weights.stat().st_mtime],
        }  # fmt: skip
        folder = args.output_dir / way.experiment.name / f"{way.window}_{way.precision}"
        journal = Journal(folder, made_with)
        decode_all(way, listed, args.max_tokens, journal)
        kept = [one for one in listed if one.id in journal.decoded]
        decoded = [journal.decoded[one.id] for one in kept]
        rows.append(make_row(way, decoded, [one.text for one in kept], args.cleaner))
    seconds = mean(one.statistics.audio_seconds for one in decoded)
    machine = describe_machine("cpu", 1)
    about = (
        f"{args.data_dir.name}: {len(kept)} utterances of {seconds:.1f} s on average, one by "
        "one, greedy, no drafts; milliseconds an utterance of processor time, means, features in "
        f"the encoder's; {machine['processor']}, 1 thread."
    )
    output = args.output or args.output_dir / "results.md"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(f"{about}\n\n{markdown_table(TITLES, rows, text_columns=3)}")
    print(output)


def main(cmd: Sequence[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("windows", lambda: work(args))


if __name__ == "__main__":
    main()
