"""Pack the heads of a trained experiment without their Whisper: a folder of some megabytes.

    python -m espnet_medusa.stages.pack_heads --exp_dir exp/asr_recurrent \\
        --model_file valid.loss.best.pth --whisper_model openai/whisper-base --card card.md \\
        --statistics exp/asr_recurrent/exact_dev/statistics.json --output_dir my_heads

The card is Markdown behind fields between two lines of ---: base_model, license, training_data,
commands, acceptance: {data: ...} and, where something is to be recommended, draft_conf; the others
are filled in. espnet-medusa-convert --heads attaches such a folder.
"""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add = parser.add_argument
    add("--exp_dir", type=Path, required=True, help="experiment with the heads: config.yaml")
    add("--model_file", default="valid.loss.best.pth", help="its weights, in that folder")
    add("--whisper_model", required=True, help="frozen in it: hub name, folder, OpenAI .pt file")
    add("--card", type=Path, required=True, help="what is to be said of the heads")
    add("--statistics", type=Path, required=True, help="statistics.json of decoding with them")
    add("--output_dir", type=Path, required=True, help="folder to make; must not be there yet")


def work(args: argparse.Namespace) -> None:
    """Pack.

    Raises:
        InputError: As ``convert.pack_heads``, or the folder is there already.
    """
    from espnet_medusa.convert.experiment import read_experiment
    from espnet_medusa.convert.pack_heads import pack_heads
    from espnet_medusa.convert.read_whisper import read_whisper
    from espnet_medusa.convert.whole_or_nothing import whole_or_nothing
    from espnet_medusa.whisper.text import TextOptions

    if args.output_dir.exists():
        raise InputError(f"{args.output_dir}: is there already; remove it, or name another folder")
    trained = read_experiment(args.exp_dir, args.exp_dir / args.model_file)
    base = read_whisper(args.whisper_model, TextOptions())
    with whole_or_nothing(args.output_dir) as folder:
        packed = pack_heads(trained, base, args.card, args.statistics, folder)
    print(
        f"{args.output_dir}: {packed.num_bytes / 1e6:.2f} MB; {100 * packed.agreement:.2f} % of "
        "drafts at random states are those of the experiment"
    )


main = make_main("pack_heads", __doc__, add_options, work)


if __name__ == "__main__":
    main()
