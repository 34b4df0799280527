"""Who drafts best for one Whisper: every drafter in every search, from one run of the encoder.

    cd egs/librispeech/asr1 && python ../../../bench/who_drafts.py conf/who_drafts/base.yaml \\
        --data_dir dump/raw/test_clean --output_dir exp_base/who_drafts

A plan (``who_drafts_plan.py``) names searches and drafters, which are experiments with decode
options. All share the frozen encoder: it reads an utterance once, then all of them decode from its
output in turns. A draft model's own encoder runs for each that needs it and is part of its time.
Every result is written down at once, and a run that was interrupted goes on where it was. With
--texts there are no times in the table: for whole test sets, in batches and on busy machines.

Writes OUTPUT_DIR/{results.md,results.json}, of a learning curve results.png, too, and
OUTPUT_DIR/SEARCH/DRAFTER with the journal and ESPnet's files of hypotheses.
"""

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from inputs import Listed, Utterance, list_utterances
from machine import describe_machine
from shared_weights import SharedWeights
from tqdm import tqdm
from who_drafts_plan import Way, read_plan
from who_drafts_report import Circumstances, Measured, write_report
from word_errors import WHISPER_CLEANER

from espnet_medusa.bin.command_line import positive, run_main
from espnet_medusa.errors import InputError
from espnet_medusa.inference.audio_batch import AudioBatch
from espnet_medusa.inference.decoding import Decoding
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.inference.journal import Decoded, Journal, NBestEntry
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.runtime.process import keep_freed_memory


@dataclass
class Contestant:
    """A way that is ready to decode.

    Attributes:
        way: What it is.
        speech2text: Its search; its encoder is that of all.
        journal: Its results.
    """

    way: Way
    speech2text: Speech2Text
    journal: Journal

    def lacks(self, batch: Sequence[Listed]) -> bool:
        """Whether one of these utterances is not decoded yet."""
        return any(listed.id not in self.journal.decoded for listed in batch)

    @torch.no_grad()
    def decode(
        self, audio: AudioBatch, memory: torch.Tensor, frames: torch.Tensor
    ) -> list[Decoding]:
        """U utterances; the draft model's encoder counts as drafting.

        Args:
            audio: Whose features may have been computed already.
            memory: (U, S, D) encoder output.
            frames: (U,) lengths of it.
        """
        model = self.speech2text.model
        prompt = model.make_prompts(memory, frames, [None] * len(frames))
        started = time.perf_counter()
        inputs = model.draft_inputs(audio.branch(), prompt.tolist())
        reading = (time.perf_counter() - started) / len(frames)
        states = model.search(memory, frames, prompt, model.limits, inputs)
        for state in states:
            state.statistics.draft_seconds += reading
            state.statistics.decoder_seconds += reading
        scorers = model.search.strategy.scoring.names
        return [
            model.writer.write(state, tokens, scorers)
            for state, tokens in zip(states, prompt.tolist(), strict=True)
        ]


@dataclass
class Contest:
    """All ways over all utterances.

    Attributes:
        contestants: With one encoder.
        too_long: Utterances that the models refuse.
    """

    contestants: list[Contestant]
    too_long: list[str] = field(default_factory=list)

    def run(self, listed: Sequence[Listed], batch_size: int, warm_up: bool) -> None:
        """Decode what the journals lack; ``warm_up``: the first batch twice."""
        pending = [one for one in listed if any(who.lacks([one]) for who in self.contestants)]
        starts = range(0, len(pending), batch_size)
        for number, start in enumerate(tqdm(starts, unit="batch", mininterval=2.0)):
            batch = pending[start : start + batch_size]
            todo = [one for one in self.contestants if one.lacks(batch)]
            utterances = [*self._short_enough(batch)]
            if not utterances:
                continue
            if warm_up:
                self._decode(utterances, todo)
                warm_up = False
            first = number % len(todo)
            for one, decoded in self._decode(utterances, todo[first:] + todo[:first]):
                one.journal.add(decoded)

    def _short_enough(self, batch: Sequence[Listed]) -> Iterator[Utterance]:
        windows = [one.speech2text.window_s for one in self.contestants]
        window = min((one for one in windows if one is not None), default=None)
        for listed in batch:
            utterance = listed.read()
            if window is not None and utterance.seconds > window:
                self.too_long.append(utterance.id)
            else:
                yield utterance

    def _decode(
        self, utterances: Sequence[Utterance], todo: Sequence[Contestant]
    ) -> list[tuple[Contestant, Decoded]]:
        model = todo[0].speech2text.model
        started = time.perf_counter()
        audio = model.batch([utterance.speech for utterance in utterances])
        memory, frames = model.encode(audio)
        seconds = (time.perf_counter() - started) / len(utterances)
        return [
            (one, _written_down(utterance, decoding, seconds))
            for one in todo
            for utterance, decoding in zip(
                utterances, one.decode(audio, memory, frames), strict=True
            )
        ]


def _written_down(utterance: Utterance, decoding: Decoding, encoder_seconds: float) -> Decoded:
    """Without a hypothesis the text is empty."""
    nbest = [
        NBestEntry(text, [*tokens], [*ids], repr(float(hypothesis.score)))
        for text, tokens, ids, hypothesis in decoding.results
    ]
    statistics = replace(
        decoding.statistics,
        audio_seconds=utterance.seconds,
        total_seconds=encoder_seconds + decoding.statistics.decoder_seconds,
    )
    return Decoded(utterance.id, nbest, statistics)


def load(ways: Sequence[Way], folder: Path, made_with: dict) -> list[Contestant]:
    """Open all models; there is one encoder in the end.

    Raises:
        InputError: Their encoders differ, or ESPnet's own search decodes one of them.
    """
    contestants: list[Contestant] = []
    shared = SharedWeights()
    for way in tqdm(ways, desc="loading", unit="way"):
        drafter = way.drafter
        weights = Path(
            drafter.experiment_file or find_weights(Path(drafter.experiment), "experiment")
        )
        speech2text = shared.open(drafter.config, weights, dict(way.options))
        if speech2text.search is None:
            raise InputError(f"{way.name}: ESPnet's own search decodes {drafter.experiment}")
        if contestants and speech2text.encoder is not contestants[0].speech2text.encoder:
            raise InputError(
                f"{way.name}: its encoder is not that of {contestants[0].way.name}; allowed: "
                "experiments on one frozen Whisper, with one encoder_precision"
            )
        about = made_with | {
            "config": str(drafter.config.resolve()),
            "weights": [str(weights), weights.stat().st_mtime],
            "options": dict(way.options),
        }
        journal = Journal(folder / slug(way.search) / slug(way.name), about)
        contestants.append(Contestant(way, speech2text, journal))
    keep_freed_memory()  # as asr_inference does
    return contestants


def slug(name: str) -> str:
    """A folder's name."""
    return re.sub(r"[^\w.]+", "_", name).strip("_")


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", type=Path, help="such as conf/who_drafts/base.yaml")
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp and text")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--limit", type=positive, help="take fewer utterances, spread over the set")
    parser.add_argument("--searches", nargs="+", help="of the plan; default: all")
    parser.add_argument("--drafters", nargs="+", help="beside the plan's first; default: all")
    parser.add_argument("--texts", action="store_true", help="compare texts; no times in the table")
    parser.add_argument("--batch_size", type=positive, default=1, help="utterances together")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--cleaner", default=WHISPER_CLEANER, help="of texts before WER")
    parser.add_argument("--report", type=Path, help="default: OUTPUT_DIR/results.md; .json beside")
    return parser


def work(args: argparse.Namespace) -> None:
    """Decode, compare, write.

    Raises:
        InputError, ValueError: The plan, an experiment or the data is not usable.
    """
    torch.set_num_threads(args.threads)
    plan = read_plan(args.plan)
    ways, left_out = plan.ways(args.searches, args.drafters)
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    listed = list_utterances(args.data_dir, args.limit)
    machine = describe_machine("cpu", args.threads)
    # Results of other circumstances are not gone on with; of texts alone they make no difference.
    timed = {"texts": True}
    if not args.texts:
        timed = {name: machine[name] for name in ("processor", "threads")}
        timed["batch_size"] = args.batch_size
    contest = Contest(load(ways, args.output_dir, {"data": str(args.data_dir.resolve()), **timed}))
    contest.run(listed, args.batch_size, warm_up=not args.texts)
    kept = [one for one in listed if one.id not in contest.too_long]
    for one in contest.contestants:
        one.journal.write_outputs([utterance.id for utterance in kept])
    measured = [
        Measured(one.way, [one.journal.decoded[utterance.id] for utterance in kept])
        for one in contest.contestants
    ]
    about = Circumstances(
        plan.title, args.data_dir.name, [one.text for one in kept], args.cleaner,
        args.batch_size, args.texts, machine, left_out, contest.too_long,
    )  # fmt: skip
    output = args.report or args.output_dir / "results.md"
    write_report(measured, about, output)
    print(output)


def main(cmd: Sequence[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("who_drafts", lambda: work(args))


if __name__ == "__main__":
    main()
