"""Beam search four ways: the same n-best, what time, and where does it go?

  uncached   ESPnet's BatchBeamSearch, whole prefixes through the teacher-forced decoder
  cached     ESPnet's BatchBeamSearch over our cached scorer (what ESPnet's own asr_inference runs)
  ours       our loop, no drafts
  drafted    our loop, drafts as wide as the beam by all heads (models with heads)

On an experiment, or on a decoder of Whisper's shape with random weights, memory and CTC:

python bench/beam_loop.py --exp_dir egs/mini_synth/asr1/exp/asr_recurrent \\
    --data_dir egs/mini_synth/asr1/dump/raw/test --num_utterances 30 --ctc_weight 0.3
python bench/beam_loop.py --random tiny
python bench/beam_loop.py --random tiny --frames 300 --ctc_weight 0.3

The ways take turns on each utterance, in one process, on one thread. The exit status is 1 if an
n-best list or a score differs.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from espnet2.asr.ctc import CTC
from inputs import enter_recipe, load_model, read_utterances
from tqdm import tqdm

from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.runtime.espnet_scorer import ScoringWhisperDecoder
from espnet_medusa.search.build import SearchModel, build_beam
from espnet_medusa.search.options import LengthLimits, SearchOptions
from espnet_medusa.search.scores import Scorers
from espnet_medusa.tree.tree_decoder import TreeDecoder
from espnet_medusa.upstream.compat import BatchBeamSearch, BatchScorerInterface, CTCPrefixScorer

WHISPER_SHAPES = {  # layers, hidden size
    "tiny": (4, 384),
    "base": (6, 512),
    "small": (12, 768),
}
WHISPER_VOCAB_SIZE = 51865
CTC_PROJECTION = "log_softmax"
MODEL_SETUP = ("start", CTC_PROJECTION)  # once an utterance
RUNTIME_PARTS = ("start", "extend", "logits", "keep")
PARTS = (*RUNTIME_PARTS, "forward", CTC_PROJECTION)
UNCACHED, CACHED, OURS, DRAFTED = "uncached", "cached", "ours", "drafted"


@dataclass
class Model:
    """A decoder with its CTC branch."""

    decoder: ScoringWhisperDecoder
    ctc: CTC
    vocab_size: int
    sos: int
    eos: int

    @cached_property
    def runtime(self) -> TreeDecoder:
        """The decoder as searches call it."""
        return build_runtime(self.decoder)


class UncachedScorer(BatchScorerInterface):
    """The whole prefix through the teacher-forced forward at every step, as ESPnet's Whisper."""

    def __init__(self, decoder: WhisperMedusaDecoder):
        self.decoder = decoder

    def batch_score(self, ys, states, xs):
        lengths = torch.full((len(ys),), xs.size(1))
        logits, _ = self.decoder(xs, lengths, ys, torch.full((len(ys),), ys.size(1)))
        return logits[:, -1].log_softmax(-1), [None] * len(ys)


class Clock:
    """Counts calls and seconds of a model's parts; a part within another is the other's."""

    def __init__(self, model: Model):
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.calls = dict.fromkeys(PARTS, 0)
        self.busy = False
        self._time(model.ctc, [CTC_PROJECTION])
        self._time(model.decoder, ["forward"])
        self._time(model.runtime, RUNTIME_PARTS)
        # ESPnet's scorer would make one of its own.
        model.decoder._current_runtime = lambda: model.runtime

    def _time(self, part: Any, names: Sequence[str]) -> Any:
        for name in names:
            setattr(part, name, self._timed(name, getattr(part, name)))
        return part

    def _timed(self, name: str, function: Callable) -> Callable:
        def timed(*args, **options):
            if self.busy:
                return function(*args, **options)
            self.busy, started = True, time.perf_counter()
            result = function(*args, **options)
            self.busy = False
            self.seconds[name] += time.perf_counter() - started
            self.calls[name] += 1
            return result

        return timed

    def reset(self) -> None:
        """Begin anew."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.calls = dict.fromkeys(PARTS, 0)


@dataclass
class Measured:
    """One way, utterance by utterance.

    Attributes:
        seconds: Of the search.
        parts: Of those, seconds by part of the model.
        calls: Decoder calls.
        nbest: Tokens (with the start symbol) and scores.
    """

    seconds: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    calls: int = 0
    nbest: list[list[tuple[list[int], float]]] = field(default_factory=list)

    def share(self, *parts: str) -> float:
        """Median share of the time."""
        spent = [sum(row[part] for part in parts) for row in self.parts]
        return median(part / whole for part, whole in zip(spent, self.seconds, strict=True))

    @property
    def outside(self) -> float:
        """Median share of the time outside ``extend``, ``logits`` and ``forward``."""
        return 1 - self.share("extend", "logits", "forward")

    @property
    def search(self) -> float:
        """Of that, what is not the model's own work once an utterance."""
        return 1 - self.share("extend", "logits", "forward", *MODEL_SETUP)


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--exp_dir", type=Path, help="a trained experiment")
    model.add_argument("--random", choices=[*WHISPER_SHAPES], help="shape of a random decoder")
    parser.add_argument("--data_dir", type=Path, help="audio for --exp_dir")
    parser.add_argument("--num_utterances", type=int, help="default: all; --random: 5")
    parser.add_argument("--frames", type=int, default=1500, help="encoder frames of --random")
    parser.add_argument("--beam_size", type=int, default=5)
    parser.add_argument("--ctc_weight", type=float, default=0.0)
    parser.add_argument("--maxlenratio", type=float, help="default: 0; --random: -24, tokens")
    parser.add_argument("--no_uncached", action="store_true", help="leave the slowest out")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of scores")
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    parser = get_parser()
    args = parser.parse_args(cmd)
    if (args.data_dir is None) != (args.exp_dir is None):
        parser.error("--exp_dir and --data_dir go together")
    torch.set_num_threads(1)
    if args.random:
        model, memories = random_model(args.random, args.frames, args.num_utterances or 5)
    else:
        model, memories = trained_model(args.exp_dir, args.data_dir, args.num_utterances)
    default = -24.0 if args.random else 0.0
    ratio = default if args.maxlenratio is None else args.maxlenratio
    clock = Clock(model)  # before the ways take hold of the parts
    ways = make_ways(model, args.beam_size, args.ctc_weight, ratio)
    if args.no_uncached:
        del ways[UNCACHED]
    measured = measure(clock, ways, memories)
    sys.exit(0 if report(measured, args.tolerance) else 1)


def trained_model(exp_dir: Path, data_dir: Path, count: int | None) -> tuple[Model, list]:
    """A trained model, and the encoder's output (S, D) of each utterance."""
    exp_dir, data_dir = exp_dir.resolve(), data_dir.resolve()
    enter_recipe(data_dir)
    asr = load_model(exp_dir).asr_model
    memories = []
    with torch.no_grad():
        for utterance in read_utterances(data_dir, count):
            speech = torch.as_tensor(utterance.speech)[None]
            memories.append(asr.encode(speech, torch.tensor([speech.size(1)]))[0][0])
    return Model(asr.decoder, asr.ctc, len(asr.token_list), asr.sos, asr.eos), memories


def random_model(shape: str, frames: int, count: int) -> tuple[Model, list]:
    """A model of Whisper's shape without heads, and random memories (frames, D)."""
    torch.manual_seed(0)
    layers, hidden_size = WHISPER_SHAPES[shape]
    decoder = ScoringWhisperDecoder(
        vocab_size=WHISPER_VOCAB_SIZE,
        encoder_output_size=hidden_size,
        num_blocks=layers,
        attention_heads=hidden_size // 64,
        linear_units=4 * hidden_size,
    ).eval()
    ctc = CTC(WHISPER_VOCAB_SIZE, hidden_size).eval()
    with torch.no_grad():
        # Peaked, as trained models are: ties would be decided by rounding.
        decoder.whisper.embed_tokens.weight.mul_(8)
        ctc.ctc_lo.weight.mul_(4)
    memories = [torch.randn(frames, hidden_size) for _ in range(count)]
    eos = WHISPER_VOCAB_SIZE - 1
    return Model(decoder, ctc, WHISPER_VOCAB_SIZE, eos, eos), memories


def make_ways(
    model: Model, beam_size: int, ctc_weight: float, maxlenratio: float
) -> dict[str, Callable[[torch.Tensor], list[tuple[list[int], float]]]]:
    """The ways, each from memory (S, D) to the n-best list."""
    weights = {"decoder": 1 - ctc_weight, "ctc": ctc_weight}
    ctc = model.ctc if ctc_weight else None

    def espnet(scorer: BatchScorerInterface) -> Callable:
        scorers = {"decoder": scorer}
        if ctc is not None:
            scorers["ctc"] = CTCPrefixScorer(ctc=ctc, eos=model.eos)
        search = BatchBeamSearch(
            *(scorers, weights, beam_size, model.vocab_size, model.sos, model.eos),
            pre_beam_score_key="full",
        ).eval()

        def run(memory):
            found = search(x=memory, maxlenratio=maxlenratio)
            return [(hypothesis.yseq.tolist(), float(hypothesis.score)) for hypothesis in found]

        return run

    def ours(depth: int | None) -> Callable:
        scorers = Scorers(weights, ctc=None if ctc is None else ctc.log_softmax)
        sizes = model.vocab_size, model.eos
        parts = SearchModel(model.runtime, *sizes, torch.device("cpu"), scorers)
        search = build_beam(SearchOptions(draft_depth=depth), parts, beam_size)

        def run(memory):
            frames, prompt = torch.tensor([len(memory)]), torch.tensor([[model.sos]])
            search_states = search(memory[None], frames, prompt, LengthLimits(maxlenratio))
            return [([model.sos, *ended.tokens], ended.score) for ended in search_states[0].ended]

        return run

    ways = {UNCACHED: espnet(UncachedScorer(model.decoder)), CACHED: espnet(model.decoder)}
    ways[OURS] = ours(0)
    if model.decoder.num_heads:
        ways[DRAFTED] = ours(None)
    return ways


@torch.no_grad()
def measure(
    clock: Clock, ways: dict[str, Callable], memories: Sequence[torch.Tensor]
) -> dict[str, Measured]:
    """All ways on each memory, one after the other."""
    measured = {name: Measured() for name in ways}
    for way in ways.values():  # warm up
        way(memories[0])
    for memory in tqdm(memories, unit="utt", mininterval=2.0):
        for name, way in ways.items():
            clock.reset()
            started = time.perf_counter()
            nbest = way(memory)
            seconds = time.perf_counter() - started
            row = measured[name]
            row.nbest.append(nbest)
            row.seconds.append(seconds)
            row.parts.append(clock.seconds)
            row.calls += clock.calls["extend"] + clock.calls["forward"]
    return measured


def report(measured: dict[str, Measured], tolerance: float) -> bool:
    """Print what was found; whether all n-best lists and scores agree."""
    ways, good = list(measured), True
    first = measured[ways[0]]
    titles = ("way", "decoder calls", "median s", "outside extend and logits", *MODEL_SETUP)
    rows = []
    for name, row in measured.items():
        setup = [row.share(part) for part in MODEL_SETUP]
        shares = [f"{100 * share:.0f}%" for share in (row.outside, *setup, row.search)]
        rows.append([name, str(row.calls), f"{median(row.seconds):.3f}", *shares])
    print(markdown_table((*titles, "the search itself"), rows, text_columns=1))
    for name in ways[1:]:
        row = measured[name]
        pairs = [*zip(row.nbest, first.nbest, strict=True)]
        same = sum([t for t, _ in a] == [t for t, _ in b] for a, b in pairs)
        gaps = [abs(x - y) for a, b in pairs for (_, x), (_, y) in zip(a, b, strict=False)]
        good = good and same == len(pairs) and max(gaps, default=0.0) <= tolerance
        print(
            f"{name}: n-best of {ways[0]} in {same}/{len(pairs)}, largest score difference "
            f"{max(gaps, default=0.0):.1e}"
        )
    print()
    for index, slow in enumerate(ways):
        for fast in ways[index + 1 :]:
            ratios = [
                before / after
                for before, after in zip(
                    measured[slow].seconds, measured[fast].seconds, strict=True
                )
            ]
            low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
            print(
                f"{slow} / {fast} seconds: median {middle:.2f}, quartiles {low:.2f} to {high:.2f}"
            )
    return good


if __name__ == "__main__":
    main()
