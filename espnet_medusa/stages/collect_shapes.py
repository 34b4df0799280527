"""Write the shape files of training (`-- OPTIONS`) without the model, which each job would load.

    python -m espnet_medusa.stages.collect_shapes --train_dir dump/raw/train \\
        --valid_dir dump/raw/dev --output_dir exp/asr_stats -- TRAINING OPTIONS

The files are those of ESPnet's collect-stats stage: samples and labels of each utterance. Those
whose label has more tokens than the decoder has positions are named and left out.
"""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.recipe.long_texts import leave_out_long_texts, longest_text
from espnet_medusa.recipe.shapes import add_vocabulary_size, write_shapes


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--train_dir", type=Path, required=True, help="holds text")
    parser.add_argument("--valid_dir", type=Path, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)


def work(args: argparse.Namespace) -> None:
    """Write the shapes of both sets.

    Raises:
        InputError, ValueError: A table, a tokenizer or an option is not usable.
    """
    from espnet_medusa.task import MedusaASRTask  # Slow to import.

    options = MedusaASRTask.get_parser().parse_args(args.command)
    preprocess = MedusaASRTask.build_preprocess_fn(options, False)
    longest = longest_text(options.decoder, options.decoder_conf)
    for part, folder in (("train", args.train_dir), ("valid", args.valid_dir)):
        output = args.output_dir / part
        write_shapes(folder, output, lambda key, text: len(preprocess(key, {"text": text})["text"]))
        leave_out_long_texts(output, longest)
        add_vocabulary_size(output / "text_shape", Path(options.token_list), options.token_type)


main = make_main("collect_shapes", __doc__, add_options, work, runs="OPTIONS")


if __name__ == "__main__":
    main()
