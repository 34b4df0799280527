"""ESPnet's asr_inference with the plugin's searches; the others go on when one utterance fails.

Options are ESPnet's and those of ``SearchOptions``; outputs and log lines are ESPnet's, plus
``statistics.json`` and ``failed_utterances``.
"""

import dataclasses
import inspect
import logging
import os
import sys

import torch
from espnet2.bin.asr_inference import Speech2Text as ESPnetSpeech2Text
from espnet2.bin.asr_inference import get_parser as get_espnet_parser
from espnet2.tasks.asr import ASRTask
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from espnet2.utils.types import int_or_none, str2bool

from espnet_medusa.decoding.job import decode_job, read_input
from espnet_medusa.decoding.journal import Journal
from espnet_medusa.errors import InputError
from espnet_medusa.speech2text import SearchOptions, Speech2Text

HELP = {
    "search": "beam: ESPnet's BatchBeamSearch; greedy: several tokens per decoder call",
    "num_drafts": "tokens drafted per decoder call; none: all heads, 0: plain greedy search",
    "acceptance": "exact: greedy text; typical: probable tokens stand, too",
    "typical_epsilon": "probability that is always enough",
    "typical_alpha": "share of exp(-entropy) that is enough",
}


def get_parser():
    """ESPnet's parser with the plugin's options."""
    parser = get_espnet_parser()
    group = parser.add_argument_group("Multi-token search")
    for entry in dataclasses.fields(SearchOptions):
        kind = int_or_none if entry.name == "num_drafts" else type(entry.default)
        group.add_argument(
            f"--{entry.name}", type=kind, default=entry.default, help=HELP[entry.name]
        )
    group.add_argument(
        "--allow_pipes", type=str2bool, default=False, help="Run the commands in wav.scp"
    )
    return parser


def main(cmd: list[str] | None = None) -> None:
    """Decode; exit status 1 when an utterance failed."""
    args = get_parser().parse_args(cmd)
    logging.basicConfig(
        level=args.log_level,
        format="%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s",
    )
    try:
        failed = inference(vars(args))
    except ValueError as error:
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
    for name, allowed in [("batch_size", 1), ("ngpu", 1)]:
        if options[name] > allowed:
            raise InputError(f"{name}: {options[name]}; allowed: at most {allowed}")
    device = "cuda" if options["ngpu"] >= 1 else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("ngpu: 1, but torch sees no GPU; allowed here: 0")
    set_all_random_seed(options["seed"])
    job = read_input(options["data_path_and_name_and_type"], options["key_file"])
    speech2text = Speech2Text.from_pretrained(
        options["model_tag"], device=device, **_speech2text_options(options)
    )
    journal = Journal(options["output_dir"], _fingerprint(options))
    preprocess = ASRTask.build_preprocess_fn(speech2text.asr_train_args, False)
    return decode_job(speech2text, job, journal, options["allow_pipes"], preprocess)


def _speech2text_options(options: dict) -> dict:
    names = set(inspect.signature(ESPnetSpeech2Text.__init__).parameters) - {"self", "device"}
    names |= {entry.name for entry in dataclasses.fields(SearchOptions)}
    return {name: value for name, value in options.items() if name in names}


def _fingerprint(options: dict) -> dict:
    """What results depend on: options, and the files that they name."""
    ignored = {"output_dir", "key_file", "log_level", "num_workers", "config"}
    kept = {name: value for name, value in options.items() if name not in ignored}
    files = [value for value in kept.values() if isinstance(value, str) and os.path.isfile(value)]
    return {"options": kept, "files": {path: os.stat(path).st_mtime_ns for path in files}}


if __name__ == "__main__":
    main()
