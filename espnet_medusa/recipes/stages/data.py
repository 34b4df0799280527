"""Stages 1 to 4: download a corpus; import, join, check, convert and filter data directories."""

import argparse
import sys
from pathlib import Path

from espnet_medusa.data.command_line import (
    SOME_FAILED,
    add_fields,
    option_type,
    or_none,
    problems_to_stdout,
    str2bool,
)
from espnet_medusa.data.options import pick_options
from espnet_medusa.recipes.stages import Command

EXAMPLES_SHOWN = 5


def download(parser: argparse.ArgumentParser) -> Command:
    """Download a file of a corpus, check it, and unpack it.

    An interrupted download is resumed. A complete file is not downloaded again.
    """
    from espnet_medusa.data.files.archive import unpack
    from espnet_medusa.recipes.download import download as download_file

    parser.add_argument("--url", required=True, help="http or https")
    parser.add_argument("--path", type=Path, required=True, help="file to write")
    parser.add_argument("--checksum", help="such as md5:<32 digits>; default: not checked")
    parser.add_argument("--unpack_to", type=Path, help="folder to unpack into; default: none")

    args = yield
    download_file(args.url, args.path, args.checksum)
    if args.unpack_to is not None:
        unpack(args.path, args.unpack_to)


def combine_data(parser: argparse.ArgumentParser) -> Command:
    """Join data directories, such as a training set of two languages."""
    from espnet_medusa.recipes.kaldi.combine import combine_data_dirs

    parser.add_argument("--data_dirs", type=Path, nargs="+", required=True, help="to join")
    parser.add_argument("--languages", nargs="+", help="language of each directory, for utt2lang")
    parser.add_argument("--output_dir", type=Path, required=True, help="directory to write")

    args = yield
    n_utterances = combine_data_dirs(args.data_dirs, args.output_dir, args.languages)
    print(f"{args.output_dir}: {n_utterances} utterances", file=sys.stderr)


def csv_to_data_dir(parser: argparse.ArgumentParser) -> Command:
    """Make a data directory from a CSV file; columns: audio, sentence[, language, regulation-*].

    Bad rows are printed to stdout, one line each; the other rows are written. The exit status is 3
    if a row is bad.
    """
    from espnet_medusa.data.kaldi.data_dir import ALLOW_EMPTY
    from espnet_medusa.recipes.kaldi import csv_import

    parser.add_argument(
        "path", metavar="CSV", type=Path, help="CSV file; audio paths are relative to its folder"
    )
    parser.add_argument("output_dir", type=Path, help="directory to write")
    parser.add_argument("--language", help="code or name for rows without a language")
    parser.add_argument("--allow_empty_text", type=str2bool, default=False, help=ALLOW_EMPTY)

    args = yield
    tables, bad = csv_import.csv_to_data_dir(**vars(args))
    for problem in bad:
        print(problem)
    notes = [f"{len(tables['wav.scp'])} utterances, {len(bad)} bad rows"]
    penalties = {*tables.get(csv_import.REGULATION, {}).values()}
    if len(penalties) == 1:
        option = f"--exponential_decay_length_penalty {penalties.pop()}"
        notes.append(f"one length penalty for all rows: use {option}")
    elif penalties:
        count = f"{len(penalties)} length penalties in {csv_import.REGULATION}"
        notes.append(f"{count}; decoding uses one: split the set by length penalty")
    for note in notes:
        print(f"{args.output_dir}: {note}", file=sys.stderr)
    return SOME_FAILED if bad else 0


def validate_data_dir(parser: argparse.ArgumentParser) -> Command:
    """Check a Kaldi data directory, and with --fix true repair what can be repaired.

    Prints one line for each problem on stdout. The exit status is 1 if any is left.
    """
    from espnet_medusa.data.kaldi import data_dir
    from espnet_medusa.recipes.kaldi.fix import BACKUP, fix_data_dir

    parser.add_argument("data_dir", help="directory with wav.scp, text, utt2spk, spk2utt")
    repair = "keep the utterances that are in all tables, sort, make utt2spk and spk2utt"
    parser.add_argument("--fix", type=str2bool, default=False, help=repair)
    add_fields(parser, data_dir.ValidationOptions())

    args = yield
    if args.fix:
        with problems_to_stdout():
            report = fix_data_dir(args.data_dir, args.allow_empty_text)
        for problem in report.dropped:
            print(problem)
        made = f"; made {' and '.join(report.generated)}" if report.generated else ""
        old = f"the old tables are in {args.data_dir}/{BACKUP}"
        kept = f"kept {report.n_kept} utterances{made}; {old}"
        print(f"{args.data_dir}: {kept}", file=sys.stderr)
    options = pick_options(data_dir.ValidationOptions, args)
    problems = data_dir.validate_data_dir(args.data_dir, options)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def perturb_speed(parser: argparse.ArgumentParser) -> Command:
    """Stage 2: add faster and slower copies of a training set's audio."""
    from espnet_medusa.recipes.kaldi import perturb
    from espnet_medusa.recipes.kaldi.audio_writer import AudioOptions

    parser.add_argument("--data_dir", required=True, help="wav.scp, text, utt2spk, segments")
    parser.add_argument("--output_dir", required=True, help="written completely or not at all")
    factors = option_type(perturb.parse_factors)
    parser.add_argument("--factors", type=factors, default="0.9 1.0 1.1", help="1.1 is faster")
    add_fields(
        parser, AudioOptions(), nj="processes", allow_pipes="whether commands in wav.scp may run"
    )

    args = yield
    with problems_to_stdout(f"{args.data_dir}: nothing was written to {args.output_dir}"):
        n_utterances = perturb.perturb_speed(**vars(args))
    print(f"{args.output_dir}: {n_utterances} utterances", file=sys.stderr)


def format_data(parser: argparse.ArgumentParser) -> Command:
    """Stage 3: convert the audio of a Kaldi data directory to one rate and one channel.

    Prints one line for each bad utterance on stdout. The exit status is 3 if the others were
    written, 1 if nothing was.
    """
    from espnet_medusa.data.options import parse_rate
    from espnet_medusa.recipes.kaldi.audio_writer import AUDIO_FORMATS, AudioOptions
    from espnet_medusa.recipes.kaldi.format import ON_BAD, FormatOptions, format_data_dir

    parser.add_argument("--data_dir", required=True, help="wav.scp, text, utt2spk, segments")
    parser.add_argument("--output_dir", required=True, help="written completely or not at all")
    rate = or_none(option_type(parse_rate))
    arguments = {"fs": {"type": rate}, "audio_format": {"choices": AUDIO_FORMATS}}
    add_fields(parser, AudioOptions(), arguments)
    add_fields(parser, FormatOptions(), {"on_bad": {"choices": ON_BAD}})

    args = yield
    with problems_to_stdout(f"{args.data_dir}: nothing was written to {args.output_dir}"):
        options = pick_options(FormatOptions, args, audio=pick_options(AudioOptions, args))
        report = format_data_dir(args.data_dir, args.output_dir, options)
    for problem in report.bad:
        print(problem)
    state = "already complete" if report.was_complete else "written"
    counts = f"{report.n_written} utterances {state}, {len(report.bad)} bad"
    print(f"{args.output_dir}: {counts}", file=sys.stderr)
    return SOME_FAILED if report.bad else 0


def filter_data(parser: argparse.ArgumentParser) -> Command:
    """Stage 4: drop training utterances that are too long, too short or have no text."""
    from espnet_medusa.data.errors import list_some
    from espnet_medusa.data.kaldi.dump_dir import DROPPED_UTTERANCES, FilterOptions, filter_data_dir
    from espnet_medusa.data.options import parse_rate

    parser.add_argument("--input_dir", required=True, help="directory that format_data wrote")
    parser.add_argument("--output_dir", required=True, help="written completely or not at all")
    add_fields(parser, FilterOptions(), {"fs": {"type": option_type(parse_rate)}})

    args = yield
    with problems_to_stdout():
        options = pick_options(FilterOptions, args)
        n_kept, dropped = filter_data_dir(args.input_dir, args.output_dir, options)
    print(f"{args.output_dir}: kept {n_kept} utterances, dropped {len(dropped)}")
    by_reason: dict[str, list[str]] = {}
    for key, reason in sorted(dropped.items()):
        by_reason.setdefault(reason.split(":")[0], []).append(key)
    for reason, keys in by_reason.items():
        print(f"  {reason}: {len(keys)} ({list_some(keys, EXAMPLES_SHOWN)})")
    if dropped:
        print(f"  all of them: {args.output_dir}/{DROPPED_UTTERANCES}")
