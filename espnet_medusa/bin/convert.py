"""Convert a model: ESPnet experiment, aiola's, Hugging Face's or CTranslate2's Whisper.

    espnet-medusa-convert aiola/whisper-medusa-v1 exp/medusa_v1
    espnet-medusa-convert openai/whisper-large-v2 exp/vanilla --language de
    espnet-medusa-convert exp/asr_linear out --to aiola --model_file exp/asr_linear/latest.pth
    espnet-medusa-convert exp/asr_finetuned out --to hugging_face
    espnet-medusa-convert Systran/faster-whisper-base exp/base
    espnet-medusa-convert exp/asr_finetuned out --to ctranslate2 --dtype float16

    espnet-medusa-convert exp/base exp/base_heads --heads my_heads

A Whisper that comes without heads gets those of the package where they were trained on its weights;
its text stays the same. An experiment made of an experiment keeps its CTC branch.

What SOURCE is shows in its files: config.yaml is an experiment; config.json is Whisper, with
aiola's heads or without, and with model.bin CTranslate2's; a .pt file is OpenAI's. A hub name is
fetched.
"""

import argparse
import logging
from pathlib import Path

from espnet_medusa.bin.command_line import run_main, str2bool
from espnet_medusa.errors import InputError

logger = logging.getLogger(__name__)

EXPERIMENT, AIOLA, HUGGING_FACE, CTRANSLATE2 = "experiment", "aiola", "hugging_face", "ctranslate2"
# Of weights; all other numbers of int8 are float32.
DTYPES = ("float32", "float16", "bfloat16", "int8", "int8_float16", "int8_bfloat16")


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="folder, hub name, or OpenAI .pt file")
    parser.add_argument("target", type=Path, help="folder to make; must not be there yet")
    parser.add_argument(
        "--to",
        choices=[EXPERIMENT, AIOLA, HUGGING_FACE, CTRANSLATE2],
        default=EXPERIMENT,
        help="format to write",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, help="of the weights in ctranslate2's format; default: float32"
    )
    parser.add_argument(
        "--whisper_model",
        help="Whisper that an aiola model was made from: says sizes that its config.json lacks, "
        "and is named in what --to aiola writes",
    )
    parser.add_argument("--model_file", type=Path, help="an experiment's weights; else model.pth")
    parser.add_argument("--tokenizer", help="folder or hub name, instead of the model's own")
    parser.add_argument("--token_list", type=Path, help="one token a line, instead of a tokenizer")
    parser.add_argument("--language", default="en", help="of the prompt in the experiment")
    parser.add_argument("--task", default="transcribe", help="or translate")
    parser.add_argument(
        "--heads",
        default="auto",
        help="to attach to a Whisper without heads, in an experiment: auto (those of the package "
        "that were trained on these weights), none, or a folder of heads",
    )
    parser.add_argument(
        "--drop_base_head",
        type=str2bool,
        default=False,
        help="whether the base head may lose its own residual layers: other text",
    )
    return parser


def work(args: argparse.Namespace) -> None:
    """Read, convert, write; the target is complete or not there.

    Raises:
        InputError: The source or an option is not usable, or the target is there already.
    """
    # Slow to import: torch and transformers.
    from espnet_medusa.convert.attach_heads import AUTO, attach_heads
    from espnet_medusa.convert.experiment import CONFIG, read_experiment
    from espnet_medusa.convert.read_whisper import read_whisper
    from espnet_medusa.files.output_folder import new_folder
    from espnet_medusa.whisper.text import TextOptions

    if args.target.exists():
        raise InputError(f"{args.target}: is there already; remove it, or choose another target")
    if args.dtype is not None and args.to != CTRANSLATE2:
        raise InputError(f"--dtype {args.dtype}: only with --to {CTRANSLATE2}; leave it out")
    if args.heads != AUTO and args.to != EXPERIMENT:
        raise InputError(f"--heads {args.heads}: only with --to {EXPERIMENT}; leave it out")
    if (Path(args.source) / CONFIG).is_file():
        if args.tokenizer is not None or args.token_list is not None:
            raise InputError("--tokenizer, --token_list: an experiment has its own; leave them out")
        checkpoint = read_experiment(Path(args.source), args.model_file)
    elif args.model_file is not None:
        raise InputError(f"--model_file: only with an experiment; {args.source} has no {CONFIG}")
    else:
        text = TextOptions(args.tokenizer, args.token_list)
        checkpoint = read_whisper(args.source, text, args.whisper_model)
    if args.drop_base_head and checkpoint.has_base_head:
        checkpoint = checkpoint.without_base_head()
    said = None
    if args.to == EXPERIMENT:
        checkpoint, said = attach_heads(checkpoint, args.heads)
    with new_folder(args.target) as folder:
        _write(checkpoint, folder, args)
    if args.to != EXPERIMENT and checkpoint.ctc is not None:
        names = ", ".join(checkpoint.ctc.weights)
        logger.warning(f"{args.source}: left out, {args.to} has no place for it: {names}")
    parts = checkpoint.architecture
    print(f"{args.target}: {args.to}, {len(checkpoint.weights)} tensors, heads: {parts.heads}")
    if said is not None:
        print(said)


def _write(checkpoint, folder: Path, args: argparse.Namespace) -> None:
    from espnet_medusa.convert.experiment import PromptOptions, write_experiment
    from espnet_medusa.convert.write_ctranslate2 import write_ctranslate2
    from espnet_medusa.convert.write_whisper import write_aiola, write_hugging_face

    if args.to == AIOLA:
        write_aiola(checkpoint, folder, args.whisper_model)
    elif args.to == HUGGING_FACE:
        write_hugging_face(checkpoint, folder)
    elif args.to == CTRANSLATE2:
        write_ctranslate2(checkpoint, folder, args.dtype or DTYPES[0])
    else:
        prompt = PromptOptions(args.language, args.task)
        write_experiment(checkpoint, folder, args.target, prompt)


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("convert", lambda: work(args))


if __name__ == "__main__":
    main()
