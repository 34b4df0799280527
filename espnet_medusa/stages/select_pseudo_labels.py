"""Make training data of what a model wrote for unlabelled audio.

    python -m espnet_medusa.stages.select_pseudo_labels --data_dir data/unlabelled_cs \\
        --text exp/asr_whisper/beam5/unlabelled_cs/text --held_out data/test_cs \\
        --train_dir data/train_cs_pseudo --valid_dir data/dev_cs_pseudo

Left out are: utterances without text; those of the held-out sets, by id and by session and time;
and the share whose text length least fits the audio. `dropped_utterances` in the training set
lists each with its reason.
"""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.filter import DROPPED_UTTERANCES
from espnet_medusa.recipe.pseudo_labels import (
    SelectionOptions,
    read_labelled,
    read_places,
    select,
    write_subset,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    options = SelectionOptions()
    add = parser.add_argument
    add("--data_dir", type=Path, required=True, help="unlabelled audio: wav.scp, segments, ...")
    add("--text", type=Path, required=True, help="what decoding wrote for it")
    add("--held_out", type=Path, nargs="*", default=[], help="test sets: data directories")
    add("--margin_s", type=float, default=options.margin_s, help="around them, goes too")
    add("--train_dir", type=Path, required=True, help="data directory to write")
    add("--valid_dir", type=Path, help="another one; none: all is for training")
    add("--drop_fraction", type=float, default=options.drop_fraction, help="for text length")
    add("--valid_fraction", type=float, default=options.valid_fraction, help="in whole sessions")


def work(args: argparse.Namespace) -> None:
    """Select, write both sets, and say what was left out.

    Raises:
        InputError, OSError: See `select` and the readers.
    """
    if args.valid_dir is None:
        args.valid_fraction = 0.0
    elif args.valid_fraction == 0:
        raise InputError("--valid_fraction 0: makes no --valid_dir; leave that option out")
    options = SelectionOptions(args.drop_fraction, args.valid_fraction, args.margin_s)
    utterances = read_labelled(args.data_dir, args.text)
    held_out = {key: place for name in args.held_out for key, place in read_places(name).items()}
    selection = select(utterances, held_out, options)
    for folder, keys, dropped in (
        (args.train_dir, selection.train, selection.dropped),
        (args.valid_dir, selection.valid, {}),
    ):
        if folder is not None:
            write_subset(
                args.data_dir, folder, {key: utterances[key].text for key in keys}, dropped
            )
            hours = sum(utterances[key].duration_s for key in keys) / 3600
            print(f"{folder}: {len(keys)} utterances, {hours:.2f} h")
    print(f"{args.data_dir}: {len(selection.dropped)} of {len(utterances)} left out")
    for reason, count in sorted(selection.counts().items()):
        print(f"  {reason}: {count}")
    if selection.dropped:
        print(f"  all of them: {args.train_dir / DROPPED_UTTERANCES}")


main = make_main("select_pseudo_labels", __doc__, add_options, work)


if __name__ == "__main__":
    main()
