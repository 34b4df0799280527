"""CTC first (docs/drafters.md): WER against decoder calls and seconds, beside the exact rule.

python bench/ctc_first.py --asr_train_config exp/asr_base/config.yaml \\
    --asr_model_file exp/asr_base/valid.acc.ave.pth --data_dir dump/raw/test \\
    --output bench/results/mini_synth/ctc_first

For any experiment with CTC, from the folder that its config and wav.scp name files from. Each
utterance is encoded once and then searched with every pair of thresholds, one after the other.
Writes OUTPUT.md, OUTPUT.json, OUTPUT_calls.png and OUTPUT_seconds.png. Whisper's references want
--cleaner whisper_en, or whisper_basic for other languages.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, median

import torch
from espnet2.text.cleaner import TextCleaner
from inputs import Utterance, read_utterances
from machine import describe_machine
from tqdm import tqdm

from espnet_medusa.inference.decoding_model import draft_sources
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.report.plan import WER_AGAINST_CALLS, WER_AGAINST_LATENCY, FigurePlan
from espnet_medusa.report.scatter import Panel, Point, plot_scatter
from espnet_medusa.scoring.alignment import align_pairs
from espnet_medusa.scoring.sclite import Counts
from espnet_medusa.scoring.trn import split_tokens
from espnet_medusa.search.build import SearchModel, build_greedy
from espnet_medusa.search.search import Search
from espnet_medusa.tuning.stopwatch import Clock

ENTROPIES = (0.1, 0.3, 1.0, 2.0)
LIKELIHOODS = (0.3, 0.1, 0.03, 0.01)


@dataclass(frozen=True)
class Setting:
    """A way to decode.

    Attributes:
        entropy, likelihood: The thresholds; None leaves the step out.
        drafts: Whether CTC drafts.
    """

    entropy: float | None = None
    likelihood: float | None = None
    drafts: bool = True

    @property
    def name(self) -> str:
        """The rule in words."""
        if not self.drafts:
            return "no drafts"
        return "exact rule" if self == EXACT else "CTC first"


EXACT, PLAIN = Setting(), Setting(drafts=False)


@dataclass(frozen=True)
class Outcome:
    """Of one utterance: its text, decoder calls, and seconds without the encoder."""

    text: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class Row:
    """What a setting gave and cost.

    Attributes:
        setting: How.
        wer: Percent.
        calls: Decoder calls an utterance.
        uncalled: Utterances that no decoder call was made for.
        search_ms: Median without the encoder.
        ms: Median with it.
        same_text: Utterances with the exact rule's text.
        utterances: All of them.
    """

    setting: Setting
    wer: float
    calls: float
    uncalled: int
    search_ms: float
    ms: float
    same_text: int
    utterances: int


def make_settings(entropies: Sequence[float], likelihoods: Sequence[float]) -> list[Setting]:
    """No drafts, the exact rule, and all pairs of thresholds, either of them or none."""
    pairs = product((None, *likelihoods), (None, *entropies))
    return [PLAIN, *(Setting(entropy, likelihood) for likelihood, entropy in pairs)]


def build(speech2text: Speech2Text, setting: Setting) -> Search:
    """The search of a setting, over the same decoder."""
    model = speech2text.asr_model
    options = replace(
        speech2text.search_options,
        ctc_entropy_threshold=setting.entropy,
        ctc_likelihood_threshold=setting.likelihood,
        draft_depth=None if setting.drafts else 0,
    )
    parts = SearchModel(
        speech2text.search.decoder, len(model.token_list), model.eos,
        torch.device(speech2text.device), sources=draft_sources(speech2text.model),
    )  # fmt: skip
    return build_greedy(options, parts)


@torch.no_grad()
def measure(
    speech2text: Speech2Text, settings: Sequence[Setting], utterances: Sequence[Utterance]
) -> tuple[dict[Setting, list[Outcome]], list[float]]:
    """Outcomes of all utterances in all ways, in turns, and seconds of the encoder."""
    searches = {setting: build(speech2text, setting) for setting in settings}
    clock = Clock(torch.device(speech2text.device))
    found: dict[Setting, list[Outcome]] = {setting: [] for setting in settings}
    encoding = []
    for number, utterance in enumerate(tqdm([utterances[0], *utterances], unit="utt")):
        started = clock.now()
        memory, frames = speech2text.model.encode(speech2text.model.batch([utterance.speech]))
        seconds = clock.now() - started
        prompt = speech2text.model.make_prompts(memory, frames, [None])
        first = number % len(settings)
        outcomes = {
            setting: run(speech2text, searches[setting], memory, frames, prompt, clock)
            for setting in [*settings[first:], *settings[:first]]
        }
        if number:  # the first time also sets up libraries
            encoding.append(seconds)
            for setting, outcome in outcomes.items():
                found[setting].append(outcome)
    return found, encoding


def run(
    speech2text: Speech2Text,
    search: Search,
    memory: torch.Tensor,
    frames: torch.Tensor,
    prompt: torch.Tensor,
    clock: Clock,
) -> Outcome:
    """Search one utterance (1, S, D)."""
    limits = speech2text.model.limits
    started = clock.now()
    [state] = search(memory, frames, prompt, limits)
    seconds = clock.now() - started
    scorers = search.strategy.scoring.names
    decoding = speech2text.model.writer.write(state, prompt[0].tolist(), scorers)
    return Outcome(decoding.results[0][0], state.statistics.decoder_calls, seconds)


def make_row(
    setting: Setting,
    found: Sequence[Outcome],
    exact: Sequence[Outcome],
    encoding: Sequence[float],
    references: Sequence[str],
    cleaner: TextCleaner,
) -> Row:
    """Figures of a setting."""
    pairs = [
        (split_tokens(cleaner(reference)), split_tokens(cleaner(one.text)))
        for reference, one in zip(references, found, strict=True)
    ]
    counts = sum(map(Counts.of_operations, align_pairs(pairs)), Counts())
    whole = [one.seconds + before for one, before in zip(found, encoding, strict=True)]
    return Row(
        setting,
        counts.error_percent,
        mean(one.calls for one in found),
        sum(one.calls == 0 for one in found),
        1000 * median(one.seconds for one in found),
        1000 * median(whole),
        sum(one.text == other.text for one, other in zip(found, exact, strict=True)),
        len(found),
    )


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    titles = (
        "rule", "entropy below", "likelihood from", "WER [%]", "calls an utterance", "no call [%]",
        "search [ms]", "with encoder [ms]", "exact rule's text",
    )  # fmt: skip
    return markdown_table(titles, [[*_cells(row)] for row in rows], text_columns=1)


def _cells(row: Row) -> Iterator[str]:
    setting = row.setting
    yield setting.name
    yield from ("-" if value is None else f"{value:g}" for value in _thresholds(setting))
    yield from (f"{row.wer:.2f}", f"{row.calls:.2f}", f"{100 * row.uncalled / row.utterances:.0f}")
    yield from (f"{row.search_ms:.1f}", f"{row.ms:.1f}", f"{row.same_text}/{row.utterances}")


def _thresholds(setting: Setting) -> tuple[float | None, float | None]:
    return setting.entropy, setting.likelihood


def plot(rows: Sequence[Row], title: str, output: Path) -> None:
    """WER against calls and against seconds: a line for each likelihood, a point an entropy."""
    kinds = {"calls": (WER_AGAINST_CALLS, "calls"), "seconds": (WER_AGAINST_LATENCY, "ms")}
    for word, (kind, measure) in kinds.items():
        series: dict[tuple[str, str], list[Point]] = {}
        groups: dict[str, dict[str, dict[str, str]]] = {}
        for row in rows:
            if row.setting in (EXACT, PLAIN):
                continue
            entropy, likelihood = _thresholds(row.setting)
            group = "exact" if likelihood is None else f"likelihood from {likelihood:g}"
            label = "decoder always asked" if entropy is None else f"{entropy:g}"
            point = Point(label, getattr(row, measure), row.wer)
            series.setdefault((group, "verified"), []).append(point)
            groups.setdefault(group, {"verified": {}})
        exact = next(row for row in rows if row.setting == EXACT)
        plain = Point("exact rule, CTC drafts", getattr(exact, measure), exact.wer)
        plan = FigurePlan(kind, title, groups=groups, points="entropy threshold in nats")
        path = output.with_name(f"{output.name}_{word}.png")
        plot_scatter(plan, {title: Panel(series, plain)}, path)


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--asr_train_config", type=Path, required=True)
    parser.add_argument("--asr_model_file", type=Path, required=True)
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp and text")
    parser.add_argument("--num_utterances", type=int, help="take fewer, spread over the set")
    parser.add_argument("--entropies", type=float, nargs="+", default=ENTROPIES, help="in nats")
    parser.add_argument("--likelihoods", type=float, nargs="+", default=LIKELIHOODS)
    parser.add_argument("--cleaner", nargs="+", help="ESPnet's, of both texts before scoring")
    parser.add_argument("--decoder_precision", help="as the decode option")
    parser.add_argument("--maxlenratio", type=float, default=0.0, help="as the decode option")
    parser.add_argument("--ngpu", type=int, default=0, choices=(0, 1))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True, help="files' name without ending")
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    """Run the command line ``cmd`` (default: this process's)."""
    args = get_parser().parse_args(cmd)
    torch.set_num_threads(args.threads)
    device = "cuda" if args.ngpu else "cpu"
    speech2text = Speech2Text(
        args.asr_train_config, args.asr_model_file, device=device, search="greedy", drafter="ctc",
        decoder_precision=args.decoder_precision, maxlenratio=args.maxlenratio, lm_weight=0.0,
    )  # fmt: skip
    utterances = [
        utterance
        for utterance in read_utterances(args.data_dir, args.num_utterances)
        if speech2text.window_s is None or utterance.seconds <= speech2text.window_s
    ]
    settings = make_settings(args.entropies, args.likelihoods)
    found, encoding = measure(speech2text, settings, utterances)
    cleaner, texts = TextCleaner(args.cleaner), [utterance.text for utterance in utterances]
    rows = [
        make_row(setting, found[setting], found[EXACT], encoding, texts, cleaner)
        for setting in settings
    ]
    seconds = sum(utterance.seconds for utterance in utterances)
    machine = describe_machine(device, args.threads)
    title = f"{args.asr_train_config.parent.name}, {args.data_dir.name}"
    about = (
        f"{title}: {len(utterances)} utterances of {seconds / len(utterances):.1f} s on average, "
        f"one by one; medians; {machine['processor']}, {machine['device']}, {args.threads} threads."
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    markdown = f"{about}\n\n{table(rows)}"
    args.output.with_name(f"{args.output.name}.md").write_text(markdown, encoding="utf-8")
    report = {"machine": machine, "audio_seconds": seconds, "rows": [*map(asdict, rows)]}
    text = json.dumps(report, indent=1) + "\n"
    args.output.with_name(f"{args.output.name}.json").write_text(text, encoding="utf-8")
    plot(rows, title, args.output)
    print(markdown)


if __name__ == "__main__":
    main()
