"""Compare Whisper programs, decoders and drafters on the same weights and the same audio.

The subject decides what is compared:

    --random tiny base         decoders of Whisper's shapes, random weights and encoder outputs
    --exp_dir EXP --data_dir D decoders of a trained model; all decode our encoder's output
    --whisper EXP --data_dir D programs with a real Whisper: samples to text
    --whisper EXP --long ...   programs on long recordings: segments with times
    --whisper EXP --seconds 1 2 5 10 20 30 ...  programs on clips of these lengths
    --plan PLAN --data_dir D   drafters and decode options of a plan in YAML (``plan.py``)

``make bench`` installs the other programs and runs

    python bench/compare.py --exp_dir egs/mini_synth/asr1/exp \\
        --data_dir egs/mini_synth/asr1/dump/raw/test --random tiny base small

Contestants (``contestants/base.py``) take turns on each input, each in a process of its own. The
rows of a plan share one process, and those with equal encoders the encoder output. With random
weights no draft is accepted, so --random compares decoders without drafts.
--exp_dir reads EXP/asr_HEADS, and EXP/asr_draft as draft model, which the recipe trains with

    ./run.sh --stage 11 --stop_stage 11 --heads draft --ignore_init_mismatch true

Writes bench/results/MACHINE/NAME.{md,json,png} or --output; for decoders NAME.json, comparison.md.
With --plan and --long a journal gets each measurement immediately, so the same command resumes.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from choose_ways import SEARCHES, make_ways
from contestants.base import CONTESTANTS, LENGTHS, MEMORIES, PLAN, RECORDINGS, SPEECH, Setup
from contestants.client import Client
from contestants.make_subjects import (
    WHISPER_SHAPES,
    convert_to_ctranslate2,
    random_subject,
    speech_subject,
    trained_subject,
)
from contestants.plan_client import PlanClient
from contestants.subjects import MemorySubject
from contestants.ways import DRAFTERS, OURS, Way
from figures import WHISPER_CLEANER, Inputs, differences, make_rows, quartiles
from inputs import (
    cut_utterances,
    enter_experiment,
    enter_recipe,
    list_utterances,
    load_model,
    read_utterances,
)
from machine import describe_machine, machine_name
from plan import read_plan
from report import make_report, write_report
from runner import Journal, Session, in_batches, measure, peak_memory, time_calls

from espnet_medusa.data.command_line import positive, run_main
from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.experiment import find_weights

RESULTS = Path(__file__).resolve().parent / "results"
TOKENS = 72  # of a sentence of some 10 s
MILLI = 1000.0
ALL_CONTESTANTS = [*dict.fromkeys([*CONTESTANTS[MEMORIES], *CONTESTANTS[SPEECH]])]


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--random", nargs="+", choices=[*WHISPER_SHAPES], default=[])
    add("--exp_dir", type=Path, help="folder with asr_HEADS and asr_draft")
    add("--heads", default="recurrent", help="the model EXP_DIR/asr_HEADS")
    add("--whisper", type=Path, help="experiment of a real Whisper")
    add("--long", action="store_true", help="transcribe recordings of any length with --whisper")
    add("--seconds", nargs="+", type=float,
        help="lengths to which long enough utterances are cut, for --whisper")  # fmt: skip
    add("--plan", type=Path, help="YAML, such as conf/drafters/base.yaml of LibriSpeech's recipe")
    add("--data_dir", type=Path, help="folder with wav.scp and text")
    add("--num_utterances", type=positive, help="number, spread over --data_dir; default: all")
    add("--name", help="name of --whisper in the report; default: the folder's name")
    add("--draft_model", help="decode option, for --whisper")
    add("--contestants", nargs="+", choices=ALL_CONTESTANTS, help="default: all")
    add("--weights", nargs="+", help="types of weights; default: those of each contestant")
    add("--searches", nargs="+", help=f"default: {', '.join(SEARCHES)}, or all of the plan")
    add("--drafters", nargs="*", help="our drafters, or the plan's, whose first always runs")
    add("--batch_sizes", nargs="+", type=positive, help="default: 1 8; with --plan 1")
    add("--rounds", type=positive, help="repetitions; default: 3 for --random, --exp_dir; else 1")
    add("--way_seconds", type=float, default=120.0, help="seconds until a row skips later rounds")
    add("--threads", type=positive, default=2, help="CPU threads of every contestant")
    add("--num_memories", type=positive, default=8, help="inputs of --random")
    add("--tokens", type=positive, default=TOKENS, help="tokens of each input of --random")
    add("--nodes", nargs="*", type=positive, default=[1, 2, 4, 8, 11, 16, 32],
        help="nodes of our decoder calls, for --random and --exp_dir")  # fmt: skip
    add("--no_memory", action="store_true", help="do not measure peak memory")
    add("--word_timestamps", action="store_true", help="compute word times of long recordings")
    add("--fallback", action="store_true",
        help="decode failed windows of long recordings again at higher temperatures")  # fmt: skip
    add("--no_seconds", action="store_true", help="report no times, for a busy machine")
    add("--cleaner", default=WHISPER_CLEANER, help="ESPnet's cleaner of texts before WER")
    add("--journal", type=Path, help="default: next to the report, with --plan and --long")
    add("--machine", help="name of the results' folder; default: the processor")
    add("--results", type=Path, default=RESULTS, help="folder of the machines' folders")
    add("--output", type=Path, help="report; default: in the results' folder")
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    run_main("compare", lambda: work(args))


def work(args: argparse.Namespace) -> None:
    """Compare on all subjects, and write each report as soon as it is measured.

    Raises:
        InputError: An option, experiment, plan or data directory is unusable.
    """
    with_data = [args.exp_dir, args.whisper, args.plan]
    if not any(with_data) and not args.random:
        raise InputError("no subject; give --random, --exp_dir, --whisper or --plan")
    if any(with_data) != (args.data_dir is not None):
        raise InputError("--data_dir: goes with --exp_dir, --whisper or --plan; give both")
    if args.seconds and not args.whisper:
        raise InputError("--seconds: goes with --whisper; give both")
    if args.output and not (args.whisper or args.plan):
        raise InputError("--output: goes with --whisper or --plan; give --results")
    if args.batch_sizes and args.whisper and not args.long:
        raise InputError("--batch_sizes: with --whisper only with --long; omit it")
    folder = args.results / (args.machine or machine_name("cpu"))
    if args.output is not None:
        args.output = args.output.resolve()
    if args.plan:
        compare_plan(args, folder.resolve())
    if args.whisper:
        compare_speech(args, folder.resolve())
    exp_dir = args.exp_dir and args.exp_dir.resolve()
    for shape in [*([None] if exp_dir else []), *args.random]:
        with tempfile.TemporaryDirectory() as path:
            compare_memories(args, shape, Path(path), folder.resolve())


# Subjects


def compare_memories(args: argparse.Namespace, shape: str | None, path: Path, folder: Path) -> None:
    """Compare decoders on a random decoder, or, if ``shape`` is None, on --exp_dir."""
    journal, setup = Journal(args.journal), Setup(threads=args.threads)
    if shape is None:
        subject, inputs = make_trained(args, path)
    else:
        subject = random_subject(path, shape, args.tokens, args.num_memories)
        inputs = Inputs(MEMORIES, subject.inputs, end_symbol=False)

    def connect(way: Way) -> Client:
        if way.contestant == "ctranslate2":
            convert_to_ctranslate2(subject, way.weights)
        return Client(subject.folder, *way.process, setup)

    ways = make_ways(subject, args, journal.left_out)
    rounds = args.rounds or 3
    with Session(connect, journal) as session:
        turns = in_batches(subject.inputs, args.batch_sizes or [1, 8])
        measure(session, ways, turns, rounds, args.way_seconds)
        seconds, frames = time_calls(session, args.nodes, rounds)
    single = [way for way in ways if way.batch_size == 1 and journal.of(way)]
    first = subject.inputs[0]
    memory = {} if args.no_memory else peak_memory(connect, single, first, journal.left_out)
    rows = make_rows(journal, ways, inputs)
    for way, row in zip([way for way in ways if journal.of(way)], rows, strict=True):
        row |= memory.get(way, {})
    sizes = asdict(subject.sizes)
    tokens = subject.fixed_tokens
    random_inputs = f"random encoder outputs, {tokens} tokens each"
    details = (
        f"{sizes['layers']} decoder layers of {sizes['hidden_size']}, vocabulary "
        f"{sizes['vocab_size']}, {len(subject.inputs)} {random_inputs if tokens else 'utterances'}"
    )
    machine = describe_machine("cpu", args.threads)
    report = make_report(MEMORIES, subject.name, details, machine, rows, journal.left_out) | {
        "sizes": sizes,
        "fixed_tokens": tokens,
        "frames": frames,
        "calls": [
            {"weights": weights, "nodes": nodes, "ms": quartiles([MILLI * one for one in times])}
            for (weights, nodes), times in seconds.items()
        ],
    }
    slug = subject.name.replace(",", "").replace(" ", "_")
    write_report(report, folder / f"{slug}.md")
    print(folder / "comparison.md")


def make_trained(args: argparse.Namespace, path: Path) -> tuple[MemorySubject, Inputs]:
    """Make the subject of --exp_dir."""
    exp_dir, data_dir = args.exp_dir.resolve(), args.data_dir.resolve()
    enter_recipe(data_dir)
    model = load_model(exp_dir / f"asr_{args.heads}")
    draft = load_model(exp_dir / "asr_draft") if (exp_dir / "asr_draft").is_dir() else None
    utterances = read_utterances(data_dir, args.num_utterances)
    name = f"{exp_dir.parents[1].name}, {args.heads} heads"
    subject = trained_subject(path, name, model, draft, utterances)

    def to_text(tokens: list[int]) -> str:
        shown = [token for token in tokens if token not in model.model.writer.hidden_ids]
        return model.tokenizer.tokens2text(model.converter.ids2tokens(shown))

    texts = {utterance.id: utterance.text for utterance in utterances}
    seconds = {utterance.id: utterance.seconds for utterance in utterances}
    return subject, Inputs(MEMORIES, subject.inputs, texts, seconds, "none", to_text=to_text)


def compare_speech(args: argparse.Namespace, folder: Path) -> None:
    """Compare programs with a real Whisper, on utterances or on long recordings."""
    exp_dir, data_dir = args.whisper.resolve(), args.data_dir.resolve()
    kind = RECORDINGS if args.long else LENGTHS if args.seconds else SPEECH
    name, suffix = args.name or exp_dir.name, "_fallback" * args.fallback
    prefix = {SPEECH: "real_whisper", LENGTHS: "lengths"}.get(kind)
    prefix = prefix or ["long_audio", "long_texts"][args.no_seconds]
    output = args.output or folder / f"{prefix}_{name}{suffix}.md"
    draft_model = args.draft_model
    if draft_model and Path(draft_model).exists():
        draft_model = str(Path(draft_model).resolve())
    machine = describe_machine("cpu", args.threads)
    setup = Setup("cpu", args.threads, args.word_timestamps, args.fallback)
    weights = find_weights(exp_dir, "whisper")
    about = {
        "weights": str(weights), "changed": weights.stat().st_mtime, "data_dir": str(data_dir),
        "draft_model": draft_model, "setup": asdict(setup), "versions": machine["versions"],
    }  # fmt: skip
    journal = Journal(journal_path(args, output, args.long), about)
    if args.seconds:
        utterances = cut_utterances(data_dir, args.seconds, args.num_utterances)
    else:
        utterances = read_utterances(data_dir, args.num_utterances)
    enter_experiment(exp_dir)
    with tempfile.TemporaryDirectory() as path:
        subject = speech_subject(Path(path), name, exp_dir, draft_model, utterances, args.long)
        ways = make_ways(subject, args, journal.left_out)
        with Session(lambda way: Client(subject.folder, *way.process, setup), journal) as session:
            # A batch consists of windows of one recording.
            sizes = (args.batch_sizes or [1, 8]) if args.long else [1]
            turns = [(size, [name]) for name in subject.inputs for size in sizes]
            measure(session, ways, turns, args.rounds or 1, warm_up=not args.long)
    names = finished(journal, ways, subject.inputs)
    texts = {one.id: one.text for one in utterances}
    lengths = {one.id: one.seconds for one in utterances}
    inputs = Inputs(kind, names, {} if args.seconds else texts, lengths, args.cleaner)
    if any(drafter in (args.drafters or DRAFTERS) for drafter in DRAFTERS):
        journal.left_out |= {f"{OURS}, drafts": reason for reason in subject.left_out}
    seconds = sum(inputs.seconds[name] for name in names)
    average = f"{len(names)} utterances of {seconds / len(names):.1f} s on average, one by one"
    details = f"{len(names)} recordings, {seconds / 3600:.2f} h" if args.long else average
    details += of_machine(args, machine)
    title = f"Whisper {name}, {'long recordings' if args.long else 'samples to text'}"
    rows = make_rows(journal, ways, inputs)
    for length in args.seconds or ():
        of_length = [name for name in names if inputs.seconds[name] == length]
        others = make_rows(journal, ways, replace(inputs, names=of_length))
        for row, other in zip(rows, others, strict=True):
            row.setdefault("ms_by_seconds", {})[f"{length:g}"] = other["ms"]
    timed = not args.no_seconds
    report = make_report(kind, title, details, machine, rows, journal.left_out, timed)
    if args.long:
        report["differences"] = differences(journal, ways, inputs)
        again = "Failed windows are decoded again, up to temperature 1"
        report["notes"] = [again if args.fallback else "Windows are decoded at temperature 0"]
    write_report(report, output)
    print(output)


def compare_plan(args: argparse.Namespace, folder: Path) -> None:
    torch.set_num_threads(args.threads)
    plan = read_plan(args.plan)
    rows, left_out = plan.rows(args.searches, args.drafters)
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    sizes = args.batch_sizes or [1]
    ways = {row.way(size): row for row in rows for size in sizes}
    machine, output = describe_machine("cpu", args.threads), args.output
    output = output or folder / f"{args.plan.stem}.md"
    about = {"data": str(args.data_dir.resolve())}
    if not args.no_seconds:  # texts do not depend on the machine
        about |= {name: machine[name] for name in ("processor", "threads")}
    journal = Journal(journal_path(args, output, True), about, left_out=dict(left_out))
    listed = {one.id: one for one in list_utterances(args.data_dir, args.num_utterances)}
    client = PlanClient(listed, ways)
    too_long = client.too_long()
    names = [name for name in listed if name not in too_long]
    with Session(lambda _: client, journal) as session:
        turns = in_batches(names, sizes)
        measure(session, [*ways], turns, args.rounds or 1, warm_up=not args.no_seconds)
    references = {name: listed[name].text for name in names}
    greedy = [row.search for row in rows if row.greedy]
    inputs = Inputs(PLAN, names, references, cleaner=args.cleaner, greedy=greedy)
    figures = make_rows(journal, [*ways], inputs)
    for figure, row in zip(figures, ways.values(), strict=True):
        figure |= {"curve": row.drafter.curve, "hours": row.drafter.hours}
    together = "one by one" if sizes == [1] else f"{' and '.join(map(str, sizes))} together"
    details = f"{len(names)} utterances of {args.data_dir.name}, {together}"
    details += of_machine(args, machine)
    timed = not args.no_seconds
    report = make_report(PLAN, plan.title, details, machine, figures, journal.left_out, timed)
    report["notes"] = [f"WER after the cleaner {args.cleaner}"]
    if too_long:
        report["notes"].append(f"Longer than the models' window: {', '.join(too_long)}")
    write_report(report, output)
    print(output)


# Parts of all subjects


def of_machine(args: argparse.Namespace, machine: dict) -> str:
    """Return the machine for a report's details; nothing if it has no times."""
    return "" if args.no_seconds else f"; {machine['processor']}, {args.threads} threads"


def journal_path(args: argparse.Namespace, output: Path, default: bool) -> Path | None:
    """Return the journal's path; None: measurements are not saved."""
    if args.journal:
        return args.journal.resolve()
    return output.with_suffix(".jsonl") if default else None


def finished(journal: Journal, ways: Sequence[Way], names: Sequence[str]) -> list[str]:
    """Return the inputs that all measured ways have; raise InputError if there is none."""
    measured = [{name for row in journal.of(way) for name in row.names} for way in ways]
    names = [name for name in names if all(name in done for done in measured if done)]
    if not names or not any(measured):
        reasons = "; ".join(f"{who}: {why}" for who, why in journal.left_out.items())
        raise InputError(f"nothing was transcribed: {reasons or 'no contestant is left'}")
    return names


if __name__ == "__main__":
    main()
