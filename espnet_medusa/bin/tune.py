"""Find the draft depth, width and budget that decode fastest with this model on this machine.

Takes the options of asr_inference for what is to be tuned, `--config` among them. `--output
X.yaml` gets the decode config, X.json all figures, X.png a picture of them.
"""

import argparse
import dataclasses
import logging
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from espnet2.tasks.asr import ASRTask

from espnet_medusa.bin import asr_inference
from espnet_medusa.decode_options import DecodeOptions
from espnet_medusa.decoding.job import read_input
from espnet_medusa.errors import InputError
from espnet_medusa.recipe.command import positive, run_main
from espnet_medusa.search.beam import LengthLimits
from espnet_medusa.speech2text import Speech2Text
from espnet_medusa.tuning.held_out import encode, read_utterances
from espnet_medusa.tuning.plot import plot_tuning
from espnet_medusa.tuning.report import (
    DRAFT_KEYS,
    circumstances,
    summary,
    write_config,
    write_report,
)
from espnet_medusa.tuning.stopwatch import Clock
from espnet_medusa.tuning.trial import Task
from espnet_medusa.tuning.tuner import Tuner

# What decoding depends on beside the plugin's own options: kept when given on the command line.
ESPNET_KEYS = (
    "beam_size", "penalty", "maxlenratio", "minlenratio", "ctc_weight", "lm_weight",
    "ngram_weight", "nbest", "normalize_length", "batch_size", "max_batch_frames", "dtype",
)  # fmt: skip
ROUNDED = ("float16", "bfloat16", "int8")


def get_parser() -> argparse.ArgumentParser:
    """The command's own options; all others are asr_inference's."""
    parser = argparse.ArgumentParser(
        description="Find the draft depth, width and budget that decode fastest.",
        epilog="All other options are those of espnet_medusa.bin.asr_inference: the model "
        "(--asr_train_config, --asr_model_file) and the search to tune (--config, --search, "
        "--beam_size, --ctc_weight, --acceptance, --batch_size, --ngpu, ...).",
        allow_abbrev=False,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data_dir", type=Path, help="held-out data, such as dump/raw/dev")
    source.add_argument("--wav_scp", type=Path, help="held-out utterances")
    parser.add_argument("--num_utterances", type=positive, default=30, help="taken evenly")
    parser.add_argument("--output", type=Path, required=True, help="decode config to write (.yaml)")
    return parser


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    words = sys.argv[1:] if cmd is None else [*map(str, cmd)]
    own, rest = get_parser().parse_known_args(words)
    given = ["--output_dir", str(own.output.parent), *rest]
    given += ["--data_path_and_name_and_type", f"{_wav_scp(own)},speech,sound"]
    parser = asr_inference.get_parser()
    args = parser.parse_args(given)
    # Searches log every utterance; here the same ones are decoded again and again.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    command = shlex.join(["python", "-m", "espnet_medusa.bin.tune_drafts", *words])
    run_main("tune_drafts", lambda: work(own, vars(args), decode_config(vars(args)), command))


def _wav_scp(own: argparse.Namespace) -> Path:
    return own.wav_scp if own.data_dir is None else own.data_dir / "wav.scp"


def decode_config(options: dict[str, Any]) -> dict[str, Any]:
    """The decode config to tune: the file's own keys, and what the command line changes.

    Args:
        options: Parsed command line.
    """
    own = {}
    if options["config"] is not None:
        text = Path(options["config"]).read_text(encoding="utf-8")
        own = yaml.safe_load(text) or {}
    names = [*ESPNET_KEYS, *(entry.name for entry in dataclasses.fields(DecodeOptions))]
    parser = asr_inference.get_parser()
    without = {name: own.get(name, parser.get_default(name)) for name in names}
    changed = {name: options[name] for name in names if options[name] != without[name]}
    return own | changed


def work(
    own: argparse.Namespace, options: dict[str, Any], given: dict[str, Any], command: str
) -> None:
    """Load, read, encode, tune, write."""
    if own.output.suffix != ".yaml":
        raise InputError(f"output: {own.output}; allowed: a name that ends in .yaml")
    if own.data_dir is not None and (own.data_dir / "segments").is_file():
        raise InputError(
            f"{own.data_dir}: has segments; cut them with espnet_medusa.bin.format_data"
        )
    if options["medusa_choices"]:
        raise InputError("medusa_choices: a fixed tree leaves nothing to tune; remove it")
    job = read_input(options["data_path_and_name_and_type"], options["key_file"])
    speech2text = load(options)
    preprocess = ASRTask.build_preprocess_fn(speech2text.asr_train_args, False)
    utterances = read_utterances(
        job, own.num_utterances, speech2text, options["allow_pipes"], preprocess
    )
    clock = Clock(torch.device(speech2text.device))
    sizes = options["batch_size"], options["max_batch_frames"]
    batches = encode(speech2text, utterances, *sizes, clock)
    task = Task(
        speech2text.search,
        speech2text.search_options,
        batches,
        LengthLimits(speech2text.maxlenratio, speech2text.minlenratio),
        speech2text.nbest,
        clock,
        rounding=(options["decoder_precision"] or speech2text.dtype) in ROUNDED,
    )
    tuning = Tuner(task).tune()
    about = circumstances(options, command, _wav_scp(own), batches, clock)
    own.output.parent.mkdir(parents=True, exist_ok=True)
    write_config(own.output, given, tuning, about)
    write_report(own.output.with_suffix(".json"), given, tuning, about)
    lines = summary(tuning, about)
    plot_tuning(tuning, lines[0], own.output.with_suffix(".png"))
    print("\n".join([*lines, str(own.output)]))


def load(options: dict[str, Any]) -> Speech2Text:
    """The model with the search to tune.

    Raises:
        InputError: An option or the model is not usable.
    """
    # Whatever the config drafts now, another model may not be able to.
    speech2text = asr_inference.load(options | dict.fromkeys(DRAFT_KEYS))
    if speech2text.search is None:
        raise InputError(
            f"nothing to tune: ESPnet's own search decodes this model or config "
            f"({type(speech2text.asr_model.decoder).__name__}); allowed: decoder: whisper_medusa, "
            "without streaming"
        )
    return speech2text


if __name__ == "__main__":
    main()
