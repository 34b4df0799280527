"""Whisper decoders compared: the same weights, the same audio, a process for each contestant.

``make bench`` installs the peers and runs

python bench/compare.py --exp_dir egs/mini_synth/asr1/exp \\
    --data_dir egs/mini_synth/asr1/dump/raw/test
python bench/compare.py --random tiny base small
python bench/compare.py --whisper exp_base/asr_vanilla --draft_model openai/whisper-tiny.en \\
    --data_dir egs/librispeech/asr1/data/test_clean --num_utterances 100

On an experiment (EXP_DIR/asr_recurrent, heads on a frozen base) every contestant decodes what our
encoder makes of the audio, and its text is scored. Ours drafts by heads, by the model's CTC branch,
by both, and by a draft model (--drafters), the one that assists transformers. With --random,
decoders of Whisper's shapes with random weights decode random memories; their heads accept nothing,
so drafts are replayed: all of their work is done, then the tokens drafted are replaced, so that
calls take as many tokens as calls with trained heads did (--replay, by default the comparison of
the experiment).

The draft model is EXP_DIR/asr_draft, a decoder layer on the frozen encoder. In the recipe's folder
this trains it:

./run.sh --stage 11 --stop_stage 11 --heads draft --ignore_init_mismatch true

With --whisper, an experiment of a real Whisper, programs transcribe from samples to text, each with
its own features and encoder (real_whisper.py); writes
bench/results/MACHINE/real_whisper_NAME.{md,json,png}.

Otherwise contestants take turns on each input while the others sleep. Then each way of decoding
runs once more in a process of its own, for the peak of its memory. Writes
bench/results/MACHINE/{SUBJECT.json,SUBJECT_tokens.json,machine.json,comparison.md,*.png}.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compare_report import write_report
from compare_rows import make_result, tokens_file
from machine import describe_machine, machine_name, measure_machine
from peers.contestant import CONTESTANTS, Setup
from peers.make_subject import WHISPER_SHAPES
from peers.schedule import Comparison, Plan, compare
from peers.subject import Subject
from peers.transcriber import TRANSCRIBERS
from peers.way import BEAM5, DRAFTERS, GREEDY, REPLAYED

from espnet_medusa.errors import InputError

RESULTS = Path(__file__).resolve().parent / "results"
SEARCHES = {"greedy": GREEDY, "beam5": BEAM5}
TOKENS = {"tiny": 72, "base": 72, "small": 72, "large-v2": 72}  # of a sentence of some 10 s


@dataclass(frozen=True)
class Scoring:
    """What turns tokens into text: the model's tokenizer, and references by input."""

    to_text: object
    references: dict[str, str]
    seconds: dict[str, float]


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exp_dir", type=Path, help="has asr_HEADS and asr_draft")
    parser.add_argument("--heads", default="recurrent", help="the model EXP_DIR/asr_HEADS")
    parser.add_argument("--whisper", type=Path, help="an experiment: a real Whisper, to text")
    parser.add_argument("--name", help="of --whisper in tables; default: the folder's")
    parser.add_argument("--draft_model", help="for --whisper, as the decode option")
    parser.add_argument("--data_dir", type=Path, help="audio for --exp_dir and --whisper")
    parser.add_argument("--num_utterances", type=int, help="of --data_dir; default: all")
    parser.add_argument("--random", nargs="+", choices=[*WHISPER_SHAPES], default=[])
    parser.add_argument("--num_memories", type=int, default=8, help="inputs of --random")
    parser.add_argument("--tokens", type=int, help="of --random, written by all; default: 72")
    parser.add_argument("--replay", type=Path, help="result of an experiment: SUBJECT.json")
    parser.add_argument(
        "--tokens_per_call", nargs="+", type=float, default=[2, 3, 4, 6],
        help="acceptances to replay beside the measured one",
    )  # fmt: skip
    parser.add_argument(
        "--contestants", nargs="+", choices=[*dict.fromkeys([*CONTESTANTS, *TRANSCRIBERS])],
        help="default: all of the subject",
    )  # fmt: skip
    parser.add_argument("--weights", nargs="+", help="types to compare; default: each contestant's")
    parser.add_argument(
        "--drafters", nargs="+", choices=DRAFTERS, default=DRAFTERS,
        help="who drafts for ours; default: all that the models there have",
    )  # fmt: skip
    parser.add_argument("--searches", nargs="+", choices=[*SEARCHES])
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--nodes", nargs="*", type=int, default=[1, 2, 4, 8, 11, 16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--way_seconds", type=float, default=120.0,
        help="a way that took as long is left out of later rounds",
    )  # fmt: skip
    parser.add_argument("--no_memory", action="store_true", help="skip the processes for memory")
    parser.add_argument("--threads", type=int, default=2, help="of every contestant")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--machine", help="name of the results' folder; default: the processor's")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    parser = get_parser()
    args = parser.parse_args(cmd)
    if not args.exp_dir and not args.random and not args.whisper:
        parser.error("give --exp_dir or --whisper with --data_dir, or --random")
    if (args.data_dir is None) != (args.exp_dir is None and args.whisper is None):
        parser.error("--data_dir goes with --exp_dir or --whisper, and they with it")
    try:
        run(args)
    except InputError as error:
        sys.exit(f"compare: {error}")


def run(args: argparse.Namespace) -> None:
    """Compare on all subjects asked for, write the report anew after each."""
    folder = (args.results / (args.machine or machine_name(args.device))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if args.whisper:
        with tempfile.TemporaryDirectory() as subject_folder:
            transcribe_with_whisper(args, Path(subject_folder), folder)
    if not args.exp_dir and not args.random:
        return
    measured = folder / "machine.json"
    if not measured.exists():
        write_json(measured, measure_machine(args.device, args.threads))
    if args.exp_dir:
        with tempfile.TemporaryDirectory() as subject_folder:
            compare_trained(args, Path(subject_folder), folder)
    for shape in args.random:
        with tempfile.TemporaryDirectory() as subject_folder:
            compare_random(args, shape, Path(subject_folder), folder)
    print(folder / "comparison.md")


def transcribe_with_whisper(args: argparse.Namespace, subject_folder: Path, folder: Path) -> None:
    """A real Whisper: samples to text."""
    from inputs import enter_experiment, read_utterances
    from real_whisper import Asked, compare_real_whisper

    exp_dir, data_dir, draft_model = args.whisper.resolve(), args.data_dir.resolve(), None
    if args.draft_model is not None:
        draft = Path(args.draft_model)
        draft_model = str(draft.resolve()) if draft.exists() else args.draft_model
    enter_experiment(exp_dir)
    asked = Asked(
        [one for one in TRANSCRIBERS if one in (args.contestants or TRANSCRIBERS)],
        args.weights,
        searches(args),
        args.drafters,
    )
    name = args.name or exp_dir.name
    output = folder / f"real_whisper_{name}.md"
    compare_real_whisper(
        subject_folder, exp_dir, name, draft_model,
        read_utterances(data_dir, args.num_utterances), asked,
        Setup(args.device, args.threads), output, describe_machine(args.device, args.threads),
    )  # fmt: skip
    print(output)


def searches(args: argparse.Namespace) -> list[str]:
    """Names of the searches that are asked for."""
    return [SEARCHES[name] for name in args.searches or SEARCHES]


def compare_trained(args: argparse.Namespace, subject_folder: Path, folder: Path) -> None:
    """An experiment: real acceptance, text scored."""
    from inputs import enter_recipe, load_model, read_utterances
    from peers.make_subject import trained_subject

    exp_dir, data_dir = args.exp_dir.resolve(), args.data_dir.resolve()
    enter_recipe(data_dir)
    model = load_model(exp_dir / f"asr_{args.heads}")
    draft = load_model(exp_dir / "asr_draft") if (exp_dir / "asr_draft").is_dir() else None
    utterances = read_utterances(data_dir, args.num_utterances)
    name = f"{exp_dir.parents[1].name}, {args.heads} heads"
    subject = trained_subject(subject_folder, name, model, draft, utterances)

    def to_text(tokens: list[int]) -> str:
        kept = [token for token in tokens if token not in model.model.writer.hidden_ids]
        return model.tokenizer.tokens2text(model.converter.ids2tokens(kept))

    scoring = Scoring(
        to_text,
        {utterance.id: utterance.text for utterance in utterances},
        {utterance.id: utterance.seconds for utterance in utterances},
    )
    finish(args, subject, compare(subject, make_plan(args, None)), folder, scoring)


def compare_random(
    args: argparse.Namespace, shape: str, subject_folder: Path, folder: Path
) -> None:
    """A random decoder: stated acceptance."""
    from peers.make_subject import random_subject

    tokens = args.tokens or TOKENS[shape]
    subject = random_subject(subject_folder, shape, tokens, args.num_memories)
    acceptance = read_acceptance(args.replay, folder)
    finish(args, subject, compare(subject, make_plan(args, acceptance)), folder, None)


def make_plan(args: argparse.Namespace, acceptance: dict[str, list[int]] | None) -> Plan:
    """What shall be measured; ``acceptance``: of replayed drafts."""
    return Plan(
        setup=Setup(args.device, args.threads, acceptance),
        contestants=[one for one in CONTESTANTS if one in (args.contestants or CONTESTANTS)],
        weights=args.weights,
        searches=searches(args),
        batch_sizes=args.batch_sizes,
        rounds=args.rounds,
        way_seconds=args.way_seconds,
        nodes=args.nodes,
        with_memory=not args.no_memory,
        tokens_per_call=args.tokens_per_call,
        drafters=args.drafters,
    )


def read_acceptance(path: Path | None, folder: Path) -> dict[str, list[int]] | None:
    """Tokens per call as measured on trained heads, call by call, by search; None: not measured.

    Raises:
        InputError: The file has no such counts.
    """
    paths = [path] if path else sorted(folder.glob("*.json"))
    for candidate in paths:
        result = json.loads(candidate.read_text(encoding="utf-8"))
        found = result.get("tokens_per_call") if isinstance(result, dict) else None
        if found:
            return {
                search: [int(tokens) for tokens, count in calls.items() for _ in range(count)]
                for search, calls in found.items()
            }
    if path:
        raise InputError(f"{path}: no tokens_per_call; give the result of an experiment")
    return None


def finish(
    args: argparse.Namespace,
    subject: Subject,
    comparison: Comparison,
    folder: Path,
    scoring: Scoring | None,
) -> None:
    """Write one subject's files, and the report over all."""
    result = make_result(subject, comparison, scoring)
    result["machine"] = describe_machine(args.device, args.threads)
    slug = subject.name.replace(",", "").replace(" ", "_")
    write_json(folder / f"{slug}.json", result)
    if subject.fixed_tokens is None or any(row.way.drafts == REPLAYED for row in comparison.rows):
        write_json(folder / f"{slug}_tokens.json", tokens_file(comparison))
    write_report(folder)


def write_json(path: Path, value: object) -> None:
    """One value, readable in a diff."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
