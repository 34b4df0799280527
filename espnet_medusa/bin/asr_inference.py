"""ESPnet's asr_inference with the plugin's searches; the others go on when one utterance fails.

Options are ESPnet's, those of ``DecodeOptions`` and, with ``longform``, of ``LongFormOptions``;
outputs and log lines are ESPnet's, plus ``statistics.json``, ``failed_utterances`` and, of audio
beyond the model's window, ``segments``.
"""

import argparse
import dataclasses
import gc
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable

import torch
from espnet2.bin.asr_inference import Speech2Text as ESPnetSpeech2Text
from espnet2.bin.asr_inference import get_parser as get_espnet_parser
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from espnet2.utils.types import float_or_none, int_or_none, str2bool, str_or_none

from espnet_medusa.bin.long_form_options import (
    DEFAULTS,
    add_long_form_options,
    read_long_form_options,
)
from espnet_medusa.errors import InputError
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.inference.job import JobInput, decode_job, read_input
from espnet_medusa.inference.journal import Journal
from espnet_medusa.inference.reader import UtteranceReader, build_preprocess
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.utterance_decoder import UtteranceDecoder
from espnet_medusa.inference.word_aligners import check_word_times
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.options import check_at_least
from espnet_medusa.runtime.process import keep_freed_memory

HELP = {
    "search": "beam: exact beam search, with acceptance: threshold one whose drafts nothing "
    "verifies; greedy: an acceptance rule decides",
    "drafter": "heads, ctc (the model's CTC branch), model (draft_model), ctc+heads or "
    "ctc+model; none: heads where there are, else a draft model",
    "ctc_draft_share": "of CTC in ctc+heads or ctc+model, 0 to 1",
    "draft_model": "experiment of ESPnet (folder or config.yaml), or a Whisper: hub name, folder, "
    ".pt file",
    "draft_model_file": "weights of the experiment; none: those that training leaves beside it",
    "lookahead": "fixed: always draft_depth; acceptance: deeper while drafts stand; cost: where "
    "most tokens a second are expected",
    "draft_depth": "steps drafted ahead per decoder call, with a lookahead at most; none: as many "
    "as heads, 5 of a draft model, 40 of CTC (15 with beam search); 0: no drafts",
    "draft_width": "hypotheses drafted; none: 1 for greedy (a chain), beam_size for beam",
    "draft_budget": "most nodes of an utterance in a decoder call; none: no limit",
    "draft_vocab_size": "drafts are among so many most frequent training tokens; none: all",
    "medusa_choices": "fixed candidate tree, the root's 1 first, such as 1 3 2 1; greedy only",
    "decoder_precision": "float32, bfloat16, float16 (GPU) or int8 (CPU); none: the model's own",
    "encoder_precision": "of Whisper's encoder, likewise; none: as decoder_precision",
    "draft_precision": "int8: heads draft in integers, the text stays exact; of a draft model: "
    "as decoder_precision; none: as decoder",
    "draft_with_lm": "whether the language model takes part in drafting",
    "language": "Whisper's prompt: a language's code, or detect; none: as trained",
    "task": "Whisper's prompt: transcribe or translate; none: as trained",
    "acceptance": "exact: greedy text; typical: probable tokens stand, too; top_m: the base "
    "head's M best stand; threshold: what the heads are sure of stands, unverified",
    "typical_epsilon": "probability that is always enough",
    "typical_alpha": "share of exp(-entropy) that is enough",
    "top_m": "ranks of the base head that are good enough",
    "threshold": "least probability of a draft that stands unverified",
    "ctc_entropy_threshold": "in nats: where all frames of CTC are below, its text stands and the "
    "decoder is not asked; none: it always is",
    "ctc_likelihood_threshold": "CTC's tokens stand, in the one call that sees all of them, up to "
    "the first one that is less probable to the decoder; none: there is no such call",
    "patience": "openai-whisper's end of a beam: at so many ended hypotheses over beam_size; none: "
    "ESPnet's",
    "length_penalty": "0 to 1: of openai-whisper's ranking; none: by mean log-probability",
    "suppress_tokens": "token ids that never come; none given with Whisper's tokens: Whisper's own",
    "begin_suppress_tokens": "token ids that do not come first; likewise",
    "forced_prefix": "token ids that every hypothesis begins with",
    "exponential_decay_length_penalty": "start and factor: the end grows likelier past start",
}
TYPES = {
    "drafter": {"type": str_or_none},
    "draft_model": {"type": str_or_none},
    "draft_model_file": {"type": str_or_none},
    "draft_depth": {"type": int_or_none},
    "draft_width": {"type": int_or_none},
    "draft_budget": {"type": int_or_none},
    "draft_vocab_size": {"type": int_or_none},
    "decoder_precision": {"type": str_or_none},
    "encoder_precision": {"type": str_or_none},
    "draft_precision": {"type": str_or_none},
    "draft_with_lm": {"type": str2bool},
    "language": {"type": str_or_none},
    "task": {"type": str_or_none},
    "medusa_choices": {"type": int, "nargs": "*"},
    "ctc_entropy_threshold": {"type": float_or_none},
    "ctc_likelihood_threshold": {"type": float_or_none},
    "patience": {"type": float_or_none},
    "length_penalty": {"type": float_or_none},
    "suppress_tokens": {"type": int, "nargs": "*"},
    "begin_suppress_tokens": {"type": int, "nargs": "*"},
    "forced_prefix": {"type": int, "nargs": "*"},
    "exponential_decay_length_penalty": {"type": float, "nargs": "*"},
}


def get_parser():
    """ESPnet's parser with the plugin's options."""
    parser = get_espnet_parser()
    for action in parser._actions:  # ESPnet 202611 writes 3.19% there, which is a format
        action.help = re.sub(r"%%|%(?!\()", "%%", action.help or "")
    group = add_decode_options(parser)
    group.add_argument(
        "--max_batch_frames",
        type=int_or_none,
        help="most frames (10 ms each) of a batch, rows times the longest; none: no limit",
    )
    group.add_argument(
        "--longform",
        type=str2bool,
        default=False,
        help="Decode audio beyond the model's window, too, window after window",
    )
    group.add_argument(
        "--utt2lang", type=str_or_none, help="Kaldi file: languages that differ from language"
    )
    group.add_argument(
        "--allow_pipes", type=str2bool, default=False, help="Run the commands in wav.scp"
    )
    add_long_form_options(parser)
    return parser


def add_decode_options(parser: argparse.ArgumentParser, **default):
    """Add the plugin's options.

    Args:
        parser: To add to.
        default: ``default=VALUE`` in place of the options' own.

    Returns:
        The argument group.
    """
    group = parser.add_argument_group("Multi-token search")
    for entry in dataclasses.fields(DecodeOptions):
        kind = {"default": entry.default, "help": HELP[entry.name]} | default
        kind |= TYPES.get(entry.name) or {"type": type(entry.default)}
        group.add_argument(f"--{entry.name}", **kind)
    return group


def main(cmd: list[str] | None = None) -> None:
    """Decode; exit status 1 when an utterance failed."""
    run(get_parser(), inference, cmd)


def run(
    parser: argparse.ArgumentParser, inference: Callable[[dict], int], cmd: list[str] | None
) -> None:
    """Parse the command line and decode; errors and failures end it with one line.

    Args:
        parser: Of the command.
        inference: Decodes by the options, and returns how many utterances failed.
        cmd: Its words; None: those of the process.

    Raises:
        SystemExit: An utterance failed, or nothing can be decoded at all.
    """
    args = parser.parse_args(cmd)
    logging.basicConfig(
        level=args.log_level,
        format="%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s",
    )
    configured = parser.get_default("batch_size")  # the config's, once it is read
    if args.batch_size == 1 and configured != 1:  # ESPnet's asr.sh always gives its own
        logging.warning(
            f"batch_size: 1 of the command line; {args.config} has {configured}: give asr.sh "
            f"--batch_size {configured}"
        )
    try:
        failed = inference(vars(args))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    if failed:
        sys.exit(f"error: {failed} utterances failed; they are listed in {args.output_dir}")


def inference(options: dict) -> int:
    """Decode one job.

    Args:
        options: Parsed command line.

    Returns:
        Number of utterances without a result.

    Raises:
        InputError: Nothing can be decoded at all: an option, a table or the model is bad.
    """
    job = read_job(options)
    decoder = open_decoder(options)
    return decode_job(decoder, job, Journal(options["output_dir"], fingerprint(options)))


def read_job(options: dict) -> JobInput:
    """Ids and audio.

    Raises:
        InputError: A table is bad.
    """
    return read_input(
        options["data_path_and_name_and_type"], options["key_file"], options["utt2lang"]
    )


def open_decoder(options: dict) -> UtteranceDecoder:
    """The model and its search as a process that decodes uses them.

    Raises:
        InputError: An option or the model is not usable.
    """
    set_all_random_seed(options["seed"])
    long_form = choose_long_form(options)
    speech2text = load(options)
    if long_form is not None:
        check_word_times(speech2text.asr_model, long_form)
    speech2text.release_weights(long_form)
    limits = options["batch_size"], options["max_batch_frames"]
    reader = make_reader(speech2text, options["allow_pipes"])
    return UtteranceDecoder(speech2text, reader, *limits, long_form)


def make_reader(speech2text: Speech2Text, allow_pipes: bool) -> UtteranceReader:
    """Make the reader of wav.scp for a model, with its preprocessing."""
    train_args = speech2text.asr_train_args
    preprocess = build_preprocess(train_args)
    return UtteranceReader.for_model(speech2text.asr_model, train_args, preprocess, allow_pipes)


def choose_long_form(options: dict) -> LongFormOptions | None:
    """How audio beyond the model's window is decoded; None: it is not.

    Raises:
        InputError: A value is not allowed.
    """
    long_form = read_long_form_options(options)
    if options["longform"]:
        return long_form
    for name, value in DEFAULTS.items():
        if getattr(long_form, name) != value:
            logging.warning(f"{name} is not used: it is for long audio, which needs longform: true")
    return None


def load(options: dict) -> Speech2Text:
    """The model and its search, for a process that does nothing but decode.

    Raises:
        InputError: An option or the model is not usable.
    """
    if options["ngpu"] > 1:
        raise InputError(f"ngpu: {options['ngpu']}; allowed: at most 1")
    if options["max_batch_frames"] is not None:
        check_at_least(options["max_batch_frames"], 1, "max_batch_frames")
    device = "cuda" if options["ngpu"] == 1 else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("ngpu: 1, but torch sees no GPU; allowed here: 0")
    keep_freed_memory()
    if not gc.get_freeze_count():  # to look for garbage in what was imported takes long
        gc.freeze()
    names = set(inspect.signature(ESPnetSpeech2Text.__init__).parameters) - {"self", "device"}
    names |= {entry.name for entry in dataclasses.fields(DecodeOptions)}
    chosen = {name: value for name, value in options.items() if name in names}
    return Speech2Text.from_pretrained(options["model_tag"], device=device, **chosen)


def fingerprint(options: dict) -> dict:
    """What results depend on: options, and the files that they name."""
    ignored = {"output_dir", "key_file", "log_level", "num_workers", "config"}
    # A batch gives what single utterances give: a job that ran out of memory resumes with less.
    ignored |= {"batch_size", "max_batch_frames"}
    if not options["longform"]:
        ignored |= {"longform", *DEFAULTS}
    if options["word_times"] == DEFAULTS["word_times"]:  # journals of before the option go on
        ignored.add("word_times")
    kept = {name: value for name, value in options.items() if name not in ignored}
    files = [value for value in kept.values() if isinstance(value, str) and os.path.isfile(value)]
    return {"options": kept, "files": {path: os.stat(path).st_mtime_ns for path in files}}


if __name__ == "__main__":
    main()
