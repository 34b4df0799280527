"""Write the shape files of training without building the model, which each job would load.

    python -m espnet_medusa.recipe.commands.collect_shapes --train_dir dump/raw/train \\
        --valid_dir dump/raw/dev --output_dir exp/asr_stats -- TRAINING OPTIONS

The files are those of ESPnet's collect-stats stage: samples and labels of each utterance. Those
whose label has more tokens than the decoder has positions are named and left out.
"""

import argparse
from pathlib import Path

from espnet_medusa.command_line import run_main, split_command
from espnet_medusa.recipe.long_texts import leave_out_long_texts, longest_text
from espnet_medusa.recipe.shapes import add_vocabulary_size, write_shapes


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        description="Write speech_shape and text_shape; `-- OPTIONS` are those of training."
    )
    parser.add_argument("--train_dir", type=Path, required=True, help="holds text")
    parser.add_argument("--valid_dir", type=Path, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    return parser


def work(args: argparse.Namespace, training: list[str]) -> None:
    """Write the shapes of both sets.

    Raises:
        InputError, ValueError: A table, a tokenizer or an option is not usable.
    """
    from espnet_medusa.task import MedusaASRTask  # Slow to import.

    options = MedusaASRTask.get_parser().parse_args(training)
    preprocess = MedusaASRTask.build_preprocess_fn(options, False)
    longest = longest_text(options.decoder, options.decoder_conf)
    for part, folder in (("train", args.train_dir), ("valid", args.valid_dir)):
        output = args.output_dir / part
        write_shapes(folder, output, lambda key, text: len(preprocess(key, {"text": text})["text"]))
        leave_out_long_texts(output, longest)
        add_vocabulary_size(output / "text_shape", Path(options.token_list), options.token_type)


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    own, training = split_command(cmd)
    args = get_parser().parse_args(own)
    run_main("collect_shapes", lambda: work(args, training))


if __name__ == "__main__":
    main()
