"""Options and steps that the commands which decode have in common.

Options are ESPnet's, ``DecodeOptions`` and, with ``longform`` or ``fallback``, ``LongFormOptions``.
"""

import argparse
import functools
import gc
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from espnet2.bin.asr_inference import get_parser as get_espnet_parser
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from espnet2.utils.nested_dict_action import NestedDictAction
from espnet2.utils.types import int_or_none, str_or_none

from espnet_medusa import __version__
from espnet_medusa.data.command_line import (
    LOG_FORMAT,
    SOME_FAILED,
    add_fields,
    option_group,
    or_none,
    str2bool,
)
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import build_options, check_at_least
from espnet_medusa.decoding.runtime.process import keep_freed_memory
from espnet_medusa.decoding.search.search_options import DRAFTS, EXACT, SearchOptions
from espnet_medusa.inference.convert.experiment import CONFIG
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.inference.draft_text_files import read_draft_texts
from espnet_medusa.inference.espnet_options import check_no_word_lm
from espnet_medusa.inference.experiment import find_experiment
from espnet_medusa.inference.job import JobDecoder, JobInput, decode_job, read_input
from espnet_medusa.inference.journal import FAILED, Journal
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.reader import UtteranceReader, build_audio_preprocess
from espnet_medusa.inference.speech2text import ESPNET_OPTIONS, Speech2Text
from espnet_medusa.inference.utterance_decoder import UtteranceDecoder
from espnet_medusa.inference.word_aligners import check_word_times

DECODE_OPTIONS = tuple(field.name for field in fields(DecodeOptions))
LONG_FORM = {field.name: field.default for field in fields(LongFormOptions)}
# If such a config is not given, ESPnet reads the one next to the weights.
WEIGHTS_OF_CONFIG = {
    "asr_train_config": "asr_model_file", "s2t_train_config": "s2t_model_file",
    "st_train_config": "st_model_file", "lm_train_config": "lm_file",
}  # fmt: skip
# Excludes imported modules from garbage collection, to make it faster; once per process.
freeze_imports = functools.cache(gc.freeze)


def get_parser():
    parser = get_espnet_parser()
    add_search(parser, DecodeOptions())
    off = {"type": str2bool, "default": False}
    add = parser.add_argument_group("Batches, long audio and languages").add_argument
    frames = "maximum padded frames (10 ms) of a batch; none: no limit"
    add("--max_batch_frames", type=int_or_none, help=frames)
    add("--longform", help="decode audio longer than the window in several windows", **off)
    fallback = (
        "decode an utterance again, at a higher temperature, if its text repeats itself or is "
        "improbable; requires nbest 1"
    )
    add("--fallback", help=fallback, **off)
    add("--utt2lang", type=str_or_none, help="Kaldi file with the languages of utterances")
    add_draft_texts(parser)
    add_long_form_options(parser)
    return parser


def add_draft_texts(parser: argparse.ArgumentParser, **default: Any) -> None:
    texts = (
        "earlier results whose texts draft: a folder, a Kaldi table, or a txt, srt, vtt or json "
        "file; exact results do not depend on them"
    )
    kind = {"type": str_or_none, "metavar": "PATH", "help": texts}
    option_group(parser, DRAFTS).add_argument("--draft_text_from", **kind, **default)


def add_search(parser: argparse.ArgumentParser, defaults: SearchOptions) -> None:
    """Add our search's options to ESPnet's parser."""
    for action in parser._actions:  # escape "%", such as that of 202611's "3.19%"
        action.help = re.sub(r"%%|%(?!\()", "%%", action.help or "")
    helps = {field.name: field.metadata["help"] for field in fields(defaults) if field.metadata}
    for action in parser._actions:  # 202611's asr_inference has ctc_window_margin, too
        helps.pop(action.dest, None)
    add_fields(parser, defaults, **helps)
    pipes = "run the commands in wav.scp"
    parser.add_argument("--allow_pipes", type=str2bool, default=False, help=pipes)
    empty = "give failed utterances an empty text, and exit with status 0 although they failed"
    parser.add_argument("--failed_as_empty", type=str2bool, default=False, help=empty)


def add_long_form_options(parser: argparse.ArgumentParser, default: Any = ...) -> None:
    """Add ``LongFormOptions``, as ``add_fields``; ``without_timestamps`` is unset by default."""
    arguments = {
        "clip_timestamps": {"type": parse_clips},
        "without_timestamps": {"type": or_none(str2bool), "default": None},
        "vad_parameters": {"action": NestedDictAction, "default": {}, "metavar": "NAME=VALUE"},
    }
    add_fields(parser, LongFormOptions(), arguments, default)


def parse_clips(value: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in value.split(",") if part.strip())
    except ValueError:
        message = f"{value!r}; allowed: seconds, such as 0,10.5"
        raise argparse.ArgumentTypeError(message) from None


def read_long_form_options(options: Mapping[str, Any]) -> LongFormOptions:
    """Build the options of long audio from those of the command line and config."""
    values = {name: options[name] for name in LONG_FORM}
    clips = values["clip_timestamps"] or ()  # a config may have a single number
    values["clip_timestamps"] = (clips,) if isinstance(clips, int | float) else tuple(clips)
    return build_options(LongFormOptions, values, "long audio")


def run(
    parser: argparse.ArgumentParser, inference: Callable[[dict], int], cmd: list[str] | None
) -> None:
    """Parse the command line and decode; ``inference`` returns how many utterances failed.

    Exit with one line: after a user error with status 1; if utterances failed with ``SOME_FAILED``,
    or with ``failed_as_empty`` with 0.
    """
    args = parser.parse_args(cmd)
    logging.basicConfig(level=args.log_level, format=LOG_FORMAT)
    configured = parser.get_default("batch_size")  # parse_args has set it to the config's value
    if args.batch_size == 1 and configured != 1:  # asr.sh always passes --batch_size
        logging.warning(
            f"batch_size: 1 in the command line replaces {configured} in {args.config}; give "
            f"asr.sh --batch_size {configured}"
        )
    try:
        failed = inference(vars(args))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    if failed:
        count = f"{failed} utterance{'s' if failed > 1 else ''}"
        print(f"error: {count} failed; listed in {args.output_dir}/{FAILED}", file=sys.stderr)
        if not args.failed_as_empty:
            sys.exit(SOME_FAILED)


def decode(decoder: JobDecoder, job: JobInput, options: dict) -> int:
    """Decode into ``output_dir``, or resume there; return the number of failed utterances."""
    journal = Journal(options["output_dir"], made_with(options))
    return decode_job(decoder, job, journal, options["failed_as_empty"])


def read_job(options: dict, previous_text: bool = False) -> JobInput:
    files = options["data_path_and_name_and_type"], options["key_file"], options.get("utt2lang")
    job, source = read_input(*files, previous_text), options.get("draft_text_from")
    if source is None:
        return job
    return replace(job, draft_texts=read_draft_texts(source, {key: [key] for key in job.keys}))


def open_decoder(options: dict) -> UtteranceDecoder:
    """Open the model for a process that only decodes; errors as ``load``."""
    set_all_random_seed(options["seed"])
    long_form = choose_long_form(options)
    speech2text = load(options, mapped=True)
    if long_form is not None:
        check_word_times(speech2text.asr_model, long_form)
    speech2text.release_weights(long_form)
    reader = make_reader(speech2text, options["allow_pipes"])
    limits = options["batch_size"], options["max_batch_frames"]
    batches = speech2text.model.batches_per_call(options["batch_size"])
    how = *limits, long_form, options["fallback"], batches
    return UtteranceDecoder(speech2text, reader, *how)


def make_reader(speech2text: Speech2Text, allow_pipes: bool) -> UtteranceReader:
    preprocess = build_audio_preprocess(speech2text.asr_train_args)
    return UtteranceReader(speech2text.model.audio, preprocess, allow_pipes)


def choose_long_form(options: dict) -> LongFormOptions | None:
    """Build the options of decoding in windows; None: audio longer than a window fails."""
    long_form = read_long_form_options(options)
    if options["fallback"]:
        if options["nbest"] > 1:
            raise InputError(f"nbest: {options['nbest']}; fallback: true allows only 1")
        return long_form
    if long_form.without_timestamps is None:
        long_form = replace(long_form, without_timestamps=False)
    if options["longform"]:
        return long_form
    for name, value in LONG_FORM.items():
        if getattr(long_form, name) != value:
            logging.warning(f"{name}: not used; it needs longform: true or fallback: true")
    return None


def device_of_ngpu(ngpu: int) -> str:
    """Return the device of ESPnet's option ``ngpu``; raise InputError if there is none."""
    if ngpu > 1:
        raise InputError(f"ngpu: {ngpu}; allowed: at most 1")
    if ngpu == 1 and not torch.cuda.is_available():
        raise InputError("ngpu: 1; allowed on this machine: 0, as torch finds no GPU")
    return "cuda" if ngpu == 1 else "cpu"


def choose_options(options: dict, names: Iterable[str], kind: type) -> dict[str, Any]:
    """Return a ``Speech2Text``'s arguments: ``names``, the fields of ``kind``, and the device."""
    check_no_word_lm(options)
    wanted = {*names, "batch_size", *(field.name for field in fields(kind))}
    chosen = {name: options[name] for name in wanted & {*options}}
    return chosen | {"device": device_of_ngpu(options["ngpu"])}


def load(options: dict, mapped: bool = False) -> Speech2Text:
    """Load the model with its search, or raise InputError; ``mapped`` as in ``Speech2Text``."""
    chosen = choose_options(options, ESPNET_OPTIONS, DecodeOptions)
    if options["max_batch_frames"] is not None:
        check_at_least(options["max_batch_frames"], 1, "max_batch_frames")
    keep_freed_memory()
    freeze_imports()
    return Speech2Text.from_pretrained(options["model_tag"], mapped=mapped, **chosen)


def made_with(options: dict) -> dict:
    """Return all that determines the results: options, files of the models, our version."""
    ignored = {"output_dir", "key_file", "log_level", "num_workers", "config", "failed_as_empty"}
    ignored |= {"utt2lang"}  # ``JobInput.source`` has each utterance's language
    if options.get("acceptance", EXACT) == EXACT:
        ignored |= {"draft_text_from"}
    # Results do not depend on batches, so a job may resume with smaller ones.
    ignored |= {"batch_size", "max_batch_frames"}
    if not (options.get("longform") or options.get("fallback")):
        ignored |= {"longform", *LONG_FORM}
    used = {name: value for name, value in options.items() if name not in ignored}
    found = {path: os.stat(path) for path in _used_files(used) if os.path.isfile(path)}
    files = {path: [status.st_size, status.st_mtime_ns] for path, status in found.items()}
    return {"options": used, "files": files, "version": __version__}


def _used_files(options: dict) -> list[str]:
    """Return the texts among the options, implied configs, and files in folders of models."""
    paths = [os.path.expanduser(value) for value in options.values() if isinstance(value, str)]
    for config, weights in WEIGHTS_OF_CONFIG.items():
        if options.get(weights) is not None and options.get(config) is None:
            paths.append(str(Path(options[weights]).with_name(CONFIG)))
    folders, draft = [options.get("model_tag"), options.get("bpemodel")], options.get("draft_model")
    experiment = draft and find_experiment(draft, options["draft_model_file"], "draft_model")
    if experiment:
        paths += map(str, experiment)  # its folder may also have the results of this job
    else:
        folders.append(draft)
    for folder in filter(None, folders):
        paths += map(str, Path(os.path.expanduser(folder)).glob("*"))
    return paths
