"""Measure which drafter decodes fastest on this machine, and write it as a decode config.

The options of asr_inference or s2t_inference, such as `--config`, choose the model and the search
to tune. With `--output X.yaml`, X.yaml is the decode config, X.json has all figures, X.md a table,
X.png a plot.
"""

import argparse
import logging
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from espnet_medusa.bin import s2t_inference
from espnet_medusa.data.command_line import positive, run_main
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import read_yaml
from espnet_medusa.decoding.search.search_options import CTC_THRESHOLDS
from espnet_medusa.decoding.search.threshold_beam import ThresholdStrategy
from espnet_medusa.inference import decoding_command
from espnet_medusa.inference.decode_options import WITHOUT_DRAFTS
from espnet_medusa.inference.job import read_input
from espnet_medusa.inference.reader import UtteranceReader
from espnet_medusa.networks.espnet_transformer import SEARCHABLE
from espnet_medusa.recipes.tuning import tuning_report as report
from espnet_medusa.recipes.tuning.available import KINDS, MODELS, available
from espnet_medusa.recipes.tuning.held_out import encode, read_utterances
from espnet_medusa.recipes.tuning.plot import plot_tuning
from espnet_medusa.recipes.tuning.stopwatch import Clock
from espnet_medusa.recipes.tuning.trial import Task
from espnet_medusa.recipes.tuning.tuned_model import DraftModelFiles, TunedASR, TunedModel, TunedS2T
from espnet_medusa.recipes.tuning.tuner import tune

# Options that the written config contains if the command line changes them, besides
# ``DECODE_OPTIONS``.
ESPNET_KEYS = (
    "beam_size", "penalty", "maxlenratio", "minlenratio", "ctc_weight", "lm_weight",
    "ngram_weight", "nbest", "normalize_length", "batch_size", "max_batch_frames", "dtype",
    "lang_sym", "task_sym", "predict_time",
)  # fmt: skip
ROUNDED = ("float16", "bfloat16", "int8")


def get_parser() -> argparse.ArgumentParser:
    """Make the parser of the options that the inference commands do not have."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="All other options are those of espnet_medusa.bin.asr_inference: the model "
        "(--asr_train_config, --asr_model_file) and the search to tune (--config, --search, "
        "--beam_size, --ctc_weight, --acceptance, --batch_size, --ngpu, ...). With "
        "--s2t_train_config and --s2t_model_file, they are those of s2t_inference. --draft_model "
        "is measured, too.",
        allow_abbrev=False,
    )
    source, add = parser.add_mutually_exclusive_group(required=True), parser.add_argument
    source.add_argument("--data_dir", type=Path, help="held-out data, such as dump/raw/dev")
    source.add_argument("--wav_scp", type=Path, help="held-out utterances")
    add("--num_utterances", type=positive, default=30, help="number of evenly spaced utterances")
    add("--drafters", nargs="+", choices=KINDS, default=[*KINDS], help="drafters; default: all")
    add("--draft_models", nargs="+", default=[], metavar="MODEL", help="draft models to measure")
    rounding = "maximum number of utterances whose text may change by rounding (float16, bfloat16)"
    add("--most_different", type=int, default=0, help=rounding)
    add("--output", type=Path, required=True, help="decode config to write (.yaml)")
    return parser


def main(cmd: list[str] | None = None) -> None:
    words = sys.argv[1:] if cmd is None else [*map(str, cmd)]
    args, rest = get_parser().parse_known_args(words)
    args.wav_scp = args.wav_scp or args.data_dir / "wav.scp"
    given = ["--output_dir", str(args.output.parent), *rest]
    given += ["--data_path_and_name_and_type", f"{args.wav_scp},speech,sound"]
    s2t = any(word.startswith("--s2t_") for word in rest)
    parser = (s2t_inference if s2t else decoding_command).get_parser()
    options = vars(parser.parse_args(given))
    # Not INFO, unlike asr_inference: the search would log each decoding of each utterance.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    command = shlex.join(["espnet-medusa-tune", *words])
    run_main("tune", lambda: work(args, options, decode_config(options, parser), command))


def decode_config(options: dict[str, Any], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the decode config to tune: that of the file with the command line's changes."""
    config = {}
    if options["config"] is not None:
        config = read_yaml(Path(options["config"]), "give a decode config") or {}
    names = [name for name in (*ESPNET_KEYS, *decoding_command.DECODE_OPTIONS) if name in options]
    before = {name: config.get(name, parser.get_default(name)) for name in names}
    return config | {name: options[name] for name in names if options[name] != before[name]}


def work(args: argparse.Namespace, options: dict, given: dict, command: str) -> None:
    if args.output.suffix != ".yaml":
        raise InputError(f"output: {args.output}; allowed: a name that ends in .yaml")
    if args.data_dir is not None and (args.data_dir / "segments").is_file():
        remedy = "cut them with espnet_medusa.bin.stage format_data"
        raise InputError(f"{args.data_dir}: has segments; {remedy}")
    if options["medusa_choices"]:
        raise InputError("medusa_choices: a fixed tree cannot be tuned; remove it")
    job = read_input(options["data_path_and_name_and_type"], options["key_file"])
    main, reader = open_model(options)
    found = available(main, args.drafters, draft_models(args, options))
    clock = Clock(torch.device(main.speech2text.device))
    window_s = found.window_s or reader.limits.window_s
    utterances = read_utterances(job, args.num_utterances, reader, window_s)
    sizes = options["batch_size"], options.get("max_batch_frames")
    batches = encode(main, utterances, *sizes, clock, found.readers)
    rounding = (options["decoder_precision"] or main.dtype) in ROUNDED
    task = Task(
        *(main.search, main.options, found.drafters, batches, main.limits, main.nbest),
        *(clock, rounding, args.most_different),
    )
    tuning = tune(task, found.left_out)
    about = report.circumstances(options, command, args.wav_scp, tuning)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    report.write_config(args.output, given, tuning, about)
    report.write_report(args.output.with_suffix(".json"), given, tuning, about)
    report.write_tables(args.output.with_suffix(".md"), tuning, about)
    plot_tuning(tuning, report.headline(about), args.output.with_suffix(".png"))
    print("\n".join([*report.summary(tuning, about), str(args.output)]))


def draft_models(args: argparse.Namespace, options: dict[str, Any]) -> list[DraftModelFiles]:
    """Return the draft models of the command line and of the decode config, each once."""
    given = [DraftModelFiles(name) for name in args.draft_models]
    if options["draft_model"] is not None:
        configured = DraftModelFiles(options["draft_model"], options["draft_model_file"])
        given = [configured, *(files for files in given if files.name != configured.name)]
    if given and not {*MODELS} & {*args.drafters}:
        allowed = f"allowed with one of {', '.join(MODELS)} among --drafters"
        raise InputError(f"draft_models: {given[0].name}; {allowed}")
    return [*dict.fromkeys(given)]


def open_model(options: dict[str, Any]) -> tuple[TunedModel, UtteranceReader]:
    """Return the model to tune, and its reader; raise InputError if an option is not usable."""
    for name in CTC_THRESHOLDS:
        if options[name] is not None:
            remedy = "allowed while tuning: none; add it to the written config"
            raise InputError(f"{name}: {options[name]}; {remedy}")
    if "s2t_model_file" in options:
        decoder = s2t_inference.open_decoder(options | WITHOUT_DRAFTS)
        speech2text, reader, kind = decoder.speech2text, decoder.reader, TunedS2T
        network = speech2text.s2t_model
    else:
        speech2text, kind = decoding_command.load(options | WITHOUT_DRAFTS), TunedASR
        reader = decoding_command.make_reader(speech2text, options["allow_pipes"])
        network = speech2text.asr_model
    if speech2text.search is None:
        decoder = type(getattr(network, "decoder", None)).__name__
        raise InputError(
            f"nothing to tune: ESPnet's own search decodes this model or config ({decoder}); "
            f"allowed: decoder: {SEARCHABLE}, without streaming"
        )
    if isinstance(speech2text.search.strategy, ThresholdStrategy):
        raise InputError(
            "acceptance: threshold with search: beam; allowed while tuning: acceptance: exact, or "
            "search: greedy"
        )
    return kind(speech2text), reader


if __name__ == "__main__":
    main()
