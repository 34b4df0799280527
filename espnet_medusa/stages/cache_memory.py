"""Run a frozen encoder over audio once, and keep what a decoder trains on (`-- OPTIONS`).

    python -m espnet_medusa.stages.cache_memory --data_dir dump/raw/train \\
        --output_dir dump/memory/train -- TRAINING OPTIONS

The encoder is that of the training's configuration and initial weights. An interrupted call goes
on where it was; `failed_utterances` lists what has no outputs, and the exit status is then 3.
"""

import argparse
import logging
from pathlib import Path

from espnet_medusa.bin.command_line import make_main, positive

SOME_FAILED = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add = parser.add_argument
    add("--data_dir", type=Path, required=True, help="wav.scp of stage 4")
    add("--output_dir", type=Path, required=True, help="folder to write")
    add("--batch_size", type=positive, default=8, help="utterances that run together")
    add("--ngpu", type=int, default=0, help="1: on the GPU")


def work(args: argparse.Namespace) -> int:
    """Keep the outputs; returns the exit status.

    Raises:
        InputError: The configuration or the data are not usable.
    """
    from espnet_medusa.inference.job import read_input
    from espnet_medusa.kaldi.dump_dir import sound_type
    from espnet_medusa.task import MedusaASRTask
    from espnet_medusa.training.cached_memory import MemoryKeeper, check_same_encoder

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s"
    )
    options = MedusaASRTask.get_parser().parse_args(args.command)
    job = read_input([(str(args.data_dir / "wav.scp"), "speech", sound_type(args.data_dir))], None)
    check_same_encoder(options, args.output_dir)
    keeper = MemoryKeeper(
        MedusaASRTask.build_initial_model(options),
        options,
        "cuda" if args.ngpu else "cpu",
        MedusaASRTask.build_preprocess_fn(options, False),
    )
    failed = keeper.run(job, args.output_dir, args.batch_size)
    print(f"{args.output_dir}: memory of {len(job.keys) - failed} of {len(job.keys)} utterances")
    return SOME_FAILED if failed else 0


main = make_main("cache_memory", __doc__, add_options, work, runs="OPTIONS")


if __name__ == "__main__":
    main()
