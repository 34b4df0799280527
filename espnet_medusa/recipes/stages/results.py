"""Stages 12 to 15: merge what inference jobs wrote, score it, pack the model and upload it."""

import argparse
import sys
import tempfile
from pathlib import Path

from espnet_medusa.data.command_line import SOME_FAILED, add_fields, option_type
from espnet_medusa.data.errors import InputError, first_line
from espnet_medusa.data.options import parse_rate, pick_options
from espnet_medusa.recipes.stages import Command


def merge_outputs(parser: argparse.ArgumentParser) -> Command:
    """Join the outputs of the inference jobs of one test set.

    Exit status: 0, all utterances have a text; 3, some failed and are named; 1, an error. Failed
    utterances have an empty text if the jobs ran with --failed_as_empty true.
    """
    from espnet_medusa.recipes import job_files

    parser.add_argument("--keys", type=Path, required=True, help="file with all ids in column 1")
    parser.add_argument("--log_dir", type=Path, required=True, help="folder of output.<job>")
    parser.add_argument("--output_dir", type=Path, required=True)

    args = yield
    texts, failed = job_files.merge_results(args.keys, args.log_dir, args.output_dir)
    job_files.merge_statistics_files(args.log_dir, args.output_dir)
    job_files.merge_segments(args.log_dir, args.output_dir)
    decoded, all_ids = texts - failed.keys(), texts | failed.keys()
    print(f"{args.output_dir}: {len(decoded)} of {len(all_ids)} utterances decoded")
    for utterance, reason in job_files.merge_short(args.log_dir, args.output_dir).items():
        print(f"  warning: {utterance}: {reason}", file=sys.stderr)
    for utterance, reason in sorted(failed.items()):
        print(f"  not decoded: {utterance}: {reason}", file=sys.stderr)
    return SOME_FAILED if failed.keys() - texts else 0


def calculate_rtf(parser: argparse.ArgumentParser) -> Command:
    """Print the real-time factor from `speech length` and `best hypo` lines of inference logs."""
    from espnet_medusa.recipes import rtf

    parser.add_argument("--log_dir", type=Path, required=True)
    parser.add_argument("--log_name", default="asr_inference", help="logs are LOG_NAME.*.log")
    rate = option_type(parse_rate)
    parser.add_argument("--fs", type=rate, default="16k", help="sample rate in Hz (16000, 16k)")

    args = yield
    logs = sorted(args.log_dir.glob(f"{args.log_name}.*.log"))
    print(rtf.calculate_rtf(logs, args.fs))


def check_scoring(parser: argparse.ArgumentParser) -> Command:
    """Check the options of ``score`` before anything is decoded."""
    from espnet_medusa.recipes import score as scoring

    add_fields(parser, scoring.ScoreOptions())
    args = yield
    scoring.check_options(pick_options(scoring.ScoreOptions, args))


def score(parser: argparse.ArgumentParser) -> Command:
    """Score one decoded test set as ESPnet's stage 13 does: WER, CER and TER folders."""
    from espnet_medusa.recipes import score as scoring
    from espnet_medusa.recipes.scoring.box_table import parse_sum

    add = parser.add_argument
    add("--data_dir", type=Path, required=True, help="folder of text and utt2spk")
    add("--output_dir", type=Path, required=True, help="folder of the hypotheses' text")
    add_fields(parser, scoring.ScoreOptions())

    args = yield
    options = pick_options(scoring.ScoreOptions, args)
    results = scoring.score(args.data_dir, args.output_dir, options)
    rates = {path.parent.name.removeprefix("score_").upper(): parse_sum(path) for path in results}
    print(f"{args.output_dir}: {', '.join(f'{name} {rate.err}' for name, rate in rates.items())}")
    silent, words = scoring.count_insertions_in_silence(args.output_dir / "score_wer")
    if silent:
        print(f"  {silent} utterances have an empty reference; words in their hypotheses: {words}")


def results_to_csv(parser: argparse.ArgumentParser) -> Command:
    """Write decoding results next to the rows of the CSV file of the audio.

    Every row is written, with the columns prediction, wer and cer. A row without a hypothesis has
    the reason in the column error and on stdout, and the exit status is 3.
    """
    from espnet_medusa.recipes.kaldi.csv_results import write_csv_results
    from espnet_medusa.recipes.tokens import make_cleaner

    add = parser.add_argument
    add("csv", type=Path, help="CSV file that csv_to_data_dir read")
    add("result_dir", type=Path, help="folder with the set's decoded text")
    add("output", type=Path, help="CSV file to write")
    add("--cleaner", default="none", help="cleaner of sentence and prediction, such as whisper_en")

    args = yield
    clean = make_cleaner(args.cleaner)
    results = write_csv_results(args.csv, args.result_dir, args.output, clean)
    for line, reason in results.missing.items():
        print(f"{args.csv}: line {line}: no hypothesis: {reason}")
    rates = (f"{name} {100 * rate:.2f}%" for name, rate in results.error_rates().items())
    counts = f"{results.rows} rows, {len(results.missing)} without hypothesis"
    print(f"{args.output}: {counts} {' '.join(rates)}", file=sys.stderr)
    return SOME_FAILED if results.missing else 0


def pack_model(parser: argparse.ArgumentParser) -> Command:
    """Pack a model and the files of its configs for --model_tag, as ESPnet does (stage 14)."""
    add = parser.add_argument
    add("--asr_train_config", type=Path, required=True)
    add("--asr_model_file", type=Path, required=True)
    add("--lm_train_config", type=Path)
    add("--lm_file", type=Path)
    add("--option", type=Path, action="append", default=[], help="another file or folder to pack")
    add("--outpath", type=Path, required=True, help="archive to write")

    args = yield
    from espnet_medusa.inference.packed_model import pack_model  # slow to import

    files = {name: file for name, file in vars(args).items() if file is not None}
    pack_model(files, files.pop("option"), files.pop("outpath"))


def pack_heads(parser: argparse.ArgumentParser) -> Command:
    """Pack the heads of a trained experiment without their Whisper: a folder of some megabytes.

    The card is Markdown after a header between two lines of ---. The header has base_model,
    license, training_data, commands, acceptance: {data: ...}, optionally draft_conf and language;
    the other fields are filled in. espnet-medusa-convert --heads attaches such a folder.
    """
    add = parser.add_argument
    add("--exp_dir", type=Path, required=True, help="experiment with the heads: config.yaml")
    add("--model_file", default="valid.loss.best.pth", help="its weights, in that folder")
    add("--whisper_model", required=True, help="its frozen Whisper: hub name, folder, .pt file")
    add("--card", type=Path, required=True, help="description of the heads")
    add("--statistics", type=Path, required=True, help="statistics.json of decoding with them")
    add("--output_dir", type=Path, required=True, help="folder to make; must not exist yet")

    args = yield
    from espnet_medusa.data.files.output_folder import new_folder
    from espnet_medusa.inference.convert.experiment import read_experiment
    from espnet_medusa.inference.convert.pack_heads import pack_heads
    from espnet_medusa.inference.convert.read_whisper import read_whisper
    from espnet_medusa.networks.whisper.text import TextOptions

    if args.output_dir.exists():
        raise InputError(f"{args.output_dir}: exists; remove it, or name another folder")
    trained = read_experiment(args.exp_dir, args.exp_dir / args.model_file)
    base = read_whisper(args.whisper_model, TextOptions())
    with new_folder(args.output_dir) as folder:
        num_bytes, agreement = pack_heads(trained, base, args.card, args.statistics, folder)
    drafts = f"{100 * agreement:.2f} % of drafts from random states equal the experiment's"
    print(f"{args.output_dir}: {num_bytes / 1e6:.2f} MB; {drafts}")


def upload(parser: argparse.ArgumentParser) -> Command:
    """Upload a packed model to the Hugging Face hub (stage 15)."""
    parser.add_argument("--packed_model", type=Path, required=True, help="archive of stage 14")
    parser.add_argument("--hf_repo", required=True, help="USER/NAME")

    args = yield
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    from espnet_medusa.data.files.archive import unpack

    if not args.packed_model.is_file():
        raise InputError(f"{args.packed_model}: no such file; run stage 14 first")
    with tempfile.TemporaryDirectory() as folder:
        unpack(args.packed_model, folder)
        api = HfApi()
        try:
            api.create_repo(args.hf_repo, exist_ok=True)
            api.upload_folder(repo_id=args.hf_repo, folder_path=folder)
        except HfHubHTTPError as error:
            reason = f"{first_line(error)}; log in with hf auth"
            raise ValueError(f"--hf_repo {args.hf_repo}: {reason}") from error
