"""Stages 5 and 10: token lists, and the shape files that training reads."""

import argparse
from pathlib import Path

from espnet_medusa.data.command_line import add_fields, positive, str2bool
from espnet_medusa.data.options import pick_options
from espnet_medusa.recipes.stages import Command


def make_tokens(parser: argparse.ArgumentParser) -> Command:
    """Make a token list from text (bpe, char, word) or from a Hugging Face tokenizer."""
    from espnet_medusa.recipes.tokens import (
        TOKEN_TYPES,
        TokenOptions,
        make_token_list,
        read_symbols,
    )

    add = parser.add_argument
    add("--text", type=Path, nargs="*", default=[], help="Kaldi text files")
    add("--token_list", type=Path, required=True, help="file to write")
    add("--token_type", required=True, help=f"one of {', '.join(TOKEN_TYPES)}")
    symbols = "file with one symbol per line, or symbols separated by commas, or none"
    add("--non_linguistic_symbols", default="none", help=symbols)
    add_fields(parser, TokenOptions("bpe"))

    args = yield
    symbols = read_symbols(args.non_linguistic_symbols)
    options = pick_options(TokenOptions, args, non_linguistic_symbols=symbols)
    print(f"{args.token_list}: {make_token_list(args.text, args.token_list, options)} tokens")


def join_texts(parser: argparse.ArgumentParser) -> Command:
    """Join Kaldi text files into one, as ESPnet's stage 5 does with --lm_train_text "A B"."""
    from espnet_medusa.recipes.tokens import join_texts

    parser.add_argument("texts", type=Path, nargs="+", help="Kaldi text files")
    parser.add_argument("--output", type=Path, required=True, help="file to write")

    args = yield
    join_texts(args.texts, args.output)


def whisper_tokens(parser: argparse.ArgumentParser) -> Command:
    """Write the token list and the tokenizer of a Whisper."""
    from espnet_medusa.networks.whisper.text import save_whisper_tokens
    from espnet_medusa.networks.whisper.token_types import WHISPER_TYPES

    parser.add_argument("--whisper_model", required=True, help="hub name, folder or .pt file")
    parser.add_argument("--token_type", required=True, choices=WHISPER_TYPES)
    parser.add_argument("--token_list", type=Path, required=True, help="file to write")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder to write")

    args = yield
    named = args.whisper_model, args.token_type
    count = save_whisper_tokens(*named, args.token_list, args.tokenizer)
    print(f"{args.token_list}: {count} tokens")


def collect_shapes(parser: argparse.ArgumentParser) -> Command:
    """Write shape files for training without building a model; `-- OPTIONS`: those of asr_train.

    The files are those of ESPnet's collect-stats stage: samples and labels of each utterance.
    Utterances whose label is too long for the decoder are left out and listed in long_texts.
    """
    from espnet_medusa.recipes import shapes

    parser.add_argument("--train_dir", type=Path, required=True, help="data directory with text")
    parser.add_argument("--valid_dir", type=Path, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)

    args = yield
    from espnet_medusa.espnet.task import MedusaASRTask  # slow to import

    options = MedusaASRTask.get_parser().parse_args(args.command)
    preprocess = MedusaASRTask.build_preprocess_fn(options, False)

    def count_labels(key: str, text: str) -> int:
        return len(preprocess(key, {"text": text})["text"])

    longest = shapes.longest_text(options.decoder, options.decoder_conf)
    for part, data_dir in (("train", args.train_dir), ("valid", args.valid_dir)):
        folder = args.output_dir / part
        shapes.write_shapes(data_dir, folder, count_labels)
        shapes.drop_long_texts(folder, longest)
        token_list = Path(options.token_list)
        shapes.add_vocabulary_size(folder / "text_shape", token_list, options.token_type)


def aggregate_stats(parser: argparse.ArgumentParser) -> Command:
    """Join the statistics of collect-stats jobs and write the shape files of training.

    Utterances whose label is too long for the decoder are left out and listed in long_texts.
    """
    from espnet2.bin.aggregate_stats_dirs import aggregate_stats_dirs

    from espnet_medusa.data.files.atomic import naming
    from espnet_medusa.data.options import read_config
    from espnet_medusa.recipes import shapes

    add = parser.add_argument
    add("--jobs", type=positive, required=True, help="number of jobs")
    add("--job_dir", required=True, help="statistics of each job, with JOB for its number")
    add("--output_dir", type=Path, required=True)
    add("--token_list", type=Path, required=True)
    add("--token_type", required=True)
    add("--text_name", default="text", help="name of the text in the data")
    add("--sum_stats", type=str2bool, default=True, help="also sum the statistics of global_mvn")

    args = yield
    folders = [args.job_dir.replace("JOB", str(job)) for job in range(1, args.jobs + 1)]
    with naming(args.output_dir):
        aggregate_stats_dirs(folders, args.output_dir, "WARNING", not args.sum_stats)
    config = read_config(Path(folders[0]) / "config.yaml", "run stage 10 again")
    longest = shapes.longest_text(config.get("decoder"), config.get("decoder_conf"))
    for part in ("train", "valid"):
        shape_file = args.output_dir / part / f"{args.text_name}_shape"
        shapes.drop_long_texts(shape_file.parent, longest, args.text_name)
        shapes.add_vocabulary_size(shape_file, args.token_list, args.token_type)
