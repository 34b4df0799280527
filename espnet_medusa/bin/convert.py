"""Convert a model between ESPnet, aiola's Whisper-Medusa, Hugging Face and CTranslate2.

    espnet-medusa-convert aiola/whisper-medusa-v1 exp/medusa_v1
    espnet-medusa-convert openai/whisper-large-v2 exp/vanilla --language de
    espnet-medusa-convert exp/asr_linear out --to aiola --model_file exp/asr_linear/latest.pth
    espnet-medusa-convert exp/asr_finetuned out --to hugging_face
    espnet-medusa-convert Systran/faster-whisper-base exp/base
    espnet-medusa-convert exp/asr_finetuned out --to ctranslate2 --dtype float16
    espnet-medusa-convert exp/base exp/base_heads --heads my_heads

SOURCE is an ESPnet experiment (folder with config.yaml), a Whisper of transformers, aiola or
CTranslate2 (folder with config.json), an OpenAI .pt file, or a hub name, which is downloaded.
If a Whisper has no heads and this package has heads for its weights, they are attached; its text
stays the same. Only experiments can contain a CTC branch.
"""

import argparse
import logging
from dataclasses import replace
from pathlib import Path

from espnet_medusa.data.command_line import make_main, str2bool
from espnet_medusa.data.errors import InputError

FORMATS = "experiment", "aiola", "hugging_face", "ctranslate2"
EXPERIMENT, AIOLA, HUGGING_FACE, CTRANSLATE2 = FORMATS
# Types of weights; with int8, tensors that are not quantized are float32.
DTYPES = ("float32", "float16", "bfloat16", "int8", "int8_float16", "int8_bfloat16")

OLD_NAME = "--draft_text"  # the first name of --draft_vocab_text
logger = logging.getLogger(__name__)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", help="folder, hub name, or OpenAI .pt file")
    add("target", type=Path, help="folder to write; must not exist")
    add("--to", choices=FORMATS, default=EXPERIMENT, help="format to write")
    add("--dtype", choices=DTYPES, help="type of the weights with --to ctranslate2; none: float32")
    whisper = (
        "base Whisper of an aiola model: supplies the sizes that the model's config.json lacks; "
        "--to aiola writes this name"
    )
    add("--whisper_model", help=whisper)
    add("--model_file", type=Path, help="weights of an experiment; none: model.pth")
    add("--tokenizer", help="folder or hub name, instead of the model's tokenizer")
    add("--token_list", type=Path, help="file with one token per line, instead of a tokenizer")
    add("--language", help="of the prompt in the experiment; default: the source's, or en")
    add("--task", help="transcribe or translate; default: the source's, or transcribe")
    heads = (
        "heads to attach, with --to experiment, to a model without heads: auto (those of the "
        "package that were trained on these weights), or a folder of heads; none removes heads"
    )
    add("--heads", default="auto", help=heads)
    vocab_text = (
        "text files with expected words, such as names: their tokens are added to the counts by "
        "which draft_vocab_size selects the tokens that heads draft"
    )
    of_files = {"type": Path, "nargs": "+", "default": []}
    add("--draft_vocab_text", **of_files, help=vocab_text)
    add(OLD_NAME, **of_files, help=argparse.SUPPRESS)
    base_head = "remove the residual layers of the base head, which changes the text"
    add("--drop_base_head", type=str2bool, default=False, help=base_head)


def work(args: argparse.Namespace) -> None:
    """Convert; the target is written as a whole or not at all."""
    # Slow imports: torch and transformers.
    from espnet_medusa.data.files.output_folder import new_folder
    from espnet_medusa.inference.convert.attach_heads import AUTO, attach_heads
    from espnet_medusa.inference.convert.draft_text import count_draft_text
    from espnet_medusa.inference.convert.experiment import CONFIG, read_experiment, write_experiment
    from espnet_medusa.inference.convert.read_whisper import read_whisper
    from espnet_medusa.inference.convert.write_ctranslate2 import write_ctranslate2
    from espnet_medusa.inference.convert.write_whisper import (
        without_unsupported,
        write_aiola,
        write_hugging_face,
    )
    from espnet_medusa.networks.whisper.text import TextOptions

    if args.draft_text:
        logger.warning(f"{OLD_NAME}: deprecated; write --draft_vocab_text")
        args.draft_vocab_text += args.draft_text
    if args.target.exists():
        raise InputError(f"{args.target}: exists; remove it, or choose another target")
    if args.dtype is not None and args.to != CTRANSLATE2:
        raise InputError(f"--dtype {args.dtype}: only with --to {CTRANSLATE2}; omit it")
    if args.heads != AUTO and args.to != EXPERIMENT:
        raise InputError(f"--heads {args.heads}: only with --to {EXPERIMENT}; omit it")
    for name in ("draft_vocab_text", "language", "task"):
        if getattr(args, name) and args.to != EXPERIMENT:
            raise InputError(f"--{name}: only with --to {EXPERIMENT}; omit it")
    if (Path(args.source) / CONFIG).is_file():
        if args.tokenizer is not None or args.token_list is not None:
            raise InputError("--tokenizer, --token_list: an experiment has its own; omit them")
        checkpoint = read_experiment(Path(args.source), args.model_file)
    elif args.model_file is not None:
        raise InputError(f"--model_file: only with an experiment; {args.source} has no {CONFIG}")
    else:
        text = TextOptions(args.tokenizer, args.token_list)
        checkpoint = read_whisper(args.source, text, args.whisper_model)
    if args.drop_base_head and checkpoint.has_base_head:
        checkpoint = checkpoint.without_base_head()
    note = None
    if args.to == EXPERIMENT:
        checkpoint, note = attach_heads(checkpoint, args.heads)
        if args.draft_vocab_text:
            checkpoint = count_draft_text(checkpoint, args.draft_vocab_text)
        given = {name: getattr(args, name) for name in ("language", "task") if getattr(args, name)}
        checkpoint = replace(checkpoint, prompt=replace(checkpoint.prompt, **given))
    else:
        checkpoint = without_unsupported(checkpoint, args.to)
    with new_folder(args.target) as folder:
        if args.to == AIOLA:
            write_aiola(checkpoint, folder, args.whisper_model)
        elif args.to == HUGGING_FACE:
            write_hugging_face(checkpoint, folder)
        elif args.to == CTRANSLATE2:
            write_ctranslate2(checkpoint, folder, args.dtype or DTYPES[0])
        else:
            write_experiment(checkpoint, folder, args.target)
    parts = checkpoint.architecture
    print(f"{args.target}: {args.to}, {len(checkpoint.weights)} tensors, heads: {parts.heads}")
    if note is not None:
        print(note)


main = make_main("convert", __doc__, add_options, work)

if __name__ == "__main__":
    main()
