"""What drafts save: decoder calls, nodes, eta, WER and time of each search, plain and drafted.

python bench/drafting.py --exp_dir egs/mini_synth/asr1/exp --heads linear block recurrent \\
    --data_dir egs/mini_synth/asr1/dump/raw/test --output_dir bench/results/mini_synth

The models are EXP_DIR/asr_HEADS, heads on the frozen EXP_DIR/asr_base. Each utterance is encoded
once and then searched in every way, one after the other, on one thread. Writes table.md, table.json
and plots. The exit status is 1 if any n-best list differs from that of the search without drafts.
120 utterances took 16 minutes on a core of a busy machine; --num_utterances 80 or --searches take
less.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from drafting_report import NBest, Outcome, make_rows, write_report
from drafting_settings import SEARCHES, Setting, make_settings
from inputs import Utterance, enter_recipe, load_model, read_utterances
from tqdm import tqdm

from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.beam import BeamState
from espnet_medusa.search.build import SearchModel, build_beam, build_greedy
from espnet_medusa.search.greedy import GreedyState
from espnet_medusa.search.options import LengthLimits, SearchOptions
from espnet_medusa.search.scores import Scorers
from espnet_medusa.search.search import Search

LIMITS = LengthLimits()  # ESPnet's defaults


@dataclass(frozen=True)
class Encoded:
    """An utterance behind the encoder; ``memory`` is (S, D)."""

    utterance: Utterance
    memory: torch.Tensor


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exp_dir", type=Path, required=True, help="has asr_base and asr_HEADS")
    parser.add_argument("--heads", nargs="+", default=["linear", "block", "recurrent"])
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--num_utterances", type=int, help="take fewer, spread over the set")
    parser.add_argument("--searches", nargs="+", choices=[*SEARCHES], default=[*SEARCHES])
    parser.add_argument("--batch_size", type=int, default=8, help="of the batched rows")
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    torch.set_num_threads(1)
    output_dir, exp_dir, data_dir = (
        path.resolve() for path in (args.output_dir, args.exp_dir, args.data_dir)
    )
    enter_recipe(data_dir)
    models = {heads: load_model(exp_dir / f"asr_{heads}") for heads in args.heads}
    check_same_base({"base": load_model(exp_dir / "asr_base"), **models})
    utterances = read_utterances(data_dir, args.num_utterances)
    settings = make_settings(args.searches, models, args.batch_size)
    outcomes = measure(models, settings, utterances, args.batch_size)
    rows = make_rows(outcomes, {utterance.id: utterance for utterance in utterances})
    write_report(rows, output_dir)
    different = [row for row in rows if row.identical < row.utterances]
    for row in different:
        setting = row.setting
        print(
            f"{setting.search.name}, {setting.heads}, {setting.drafts}, batch "
            f"{setting.batch_size}: n-best differs in {row.utterances - row.identical}",
            file=sys.stderr,
        )
    sys.exit(1 if different else 0)


def check_same_base(models: dict[str, Speech2Text]) -> None:
    """All heads sit on one frozen base: memory, CTC and the plain search are those of the first.

    Raises:
        ValueError: They do not.
    """
    first, *others = models
    expected = _base_weights(models[first])
    for heads in others:
        weights = _base_weights(models[heads])
        differing = [name for name in expected if not torch.equal(expected[name], weights[name])]
        if differing:
            raise ValueError(
                f"asr_{heads}: {differing[0]} differs from that of asr_{first}; allowed: heads "
                "trained on one frozen base"
            )


def _base_weights(model: Speech2Text) -> dict[str, torch.Tensor]:
    weights = model.asr_model.state_dict()
    base = ("encoder.", "ctc.", "decoder.whisper.")
    return {name: weight for name, weight in weights.items() if name.startswith(base)}


def measure(
    models: dict[str, Speech2Text],
    settings: Sequence[Setting],
    utterances: Sequence[Utterance],
    batch_size: int,
) -> list[Outcome]:
    """Search every utterance in every way; the ways take turns, so that load hits all alike."""
    searches = {setting: build(setting, models) for setting in settings}
    model = next(iter(models.values()))
    longest_first = sorted(utterances, key=lambda utterance: -utterance.seconds)
    outcomes: list[Outcome] = []
    with tqdm(total=len(utterances), unit="utt", mininterval=2.0) as progress:
        for first in range(0, len(longest_first), batch_size):
            batch = longest_first[first : first + batch_size]
            encoded = [encode(model, utterance) for utterance in batch]
            if first == 0:  # warm up
                for setting in settings:
                    run_once(setting, searches[setting], encoded[-1:], model, first)
            for single in encoded:
                for setting in settings:
                    if setting.batch_size == 1:
                        outcomes += run_once(setting, searches[setting], [single], model, first)
                progress.update()
            for setting in settings:
                if setting.batch_size > 1:
                    outcomes += run_once(setting, searches[setting], encoded, model, first)
    return outcomes


@torch.no_grad()
def encode(model: Speech2Text, utterance: Utterance) -> Encoded:
    """The encoder's output, the same for all heads."""
    speech = torch.as_tensor(utterance.speech)[None]
    memory, _ = model.asr_model.encode(speech, torch.tensor([speech.size(1)]))
    return Encoded(utterance, memory[0])


def build(setting: Setting, models: dict[str, Speech2Text]) -> Search:
    """The search that a setting describes; without drafts it runs on any of the decoders."""
    speech2text = models.get(setting.heads) or next(iter(models.values()))
    model, search = speech2text.asr_model, setting.search
    sizes = len(model.token_list), model.eos
    options = SearchOptions(
        search="beam" if search.beam_size else "greedy",
        draft_depth=None if setting.choices else setting.depth,
        draft_width=None if setting.choices else setting.width or None,
        medusa_choices=[1, *setting.choices] if setting.choices else None,
    )
    weights = {"decoder": 1 - search.ctc_weight, "ctc": search.ctc_weight}
    scorers = Scorers(weights, ctc=model.ctc.log_softmax if search.ctc_weight else None)
    parts = SearchModel(build_runtime(model.decoder), *sizes, torch.device("cpu"), scorers)
    if not search.beam_size:
        return build_greedy(options, parts)
    built = build_beam(options, parts, search.beam_size)
    # Decode options can only exclude the language model from drafting.
    shape = replace(built.planner.shape, left_out=frozenset(setting.left_out))
    return Search(built.decoder, RunAhead(built.strategy, built.planner.proposer, shape))


def run_once(
    setting: Setting, search, encoded: Sequence[Encoded], model: Speech2Text, batch: int
) -> list[Outcome]:
    """Search some utterances of a batch together; the encoder does not count."""
    memory = torch.nn.utils.rnn.pad_sequence([one.memory for one in encoded], batch_first=True)
    frames = [len(one.memory) for one in encoded]
    prompt = torch.full((len(encoded), 1), model.asr_model.sos)
    started = time.perf_counter()
    states = search(memory, torch.tensor(frames), prompt, LIMITS)
    seconds = (time.perf_counter() - started) / len(encoded)
    outcomes = []
    for one, state in zip(encoded, states, strict=True):
        nbest, text = read_walk(state, model)
        cost = state.statistics
        outcome = Outcome(setting, one.utterance.id, cost, state.steps, seconds, nbest, text, batch)
        outcomes.append(outcome)
    return outcomes


def read_walk(state: GreedyState | BeamState, model: Speech2Text) -> tuple[NBest, str]:
    """The whole n-best list of a finished state, and the text of the best."""
    eos = model.asr_model.eos
    if isinstance(state, BeamState):
        nbest = [(tuple(ended.tokens), ended.score) for ended in state.ended]
    else:
        tokens = [*state.tokens, eos] if state.ended else state.tokens
        nbest = [(tuple(tokens), state.hypothesis.score)]
    hidden = {eos, *model.model.writer.hidden_ids}
    best = [token for token in nbest[0][0] if token not in hidden] if nbest else []
    return nbest, model.tokenizer.tokens2text(model.converter.ids2tokens(best))


if __name__ == "__main__":
    main()
