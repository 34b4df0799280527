"""Join the statistics of collect-stats jobs and write the shape files that training reads.

Utterances whose label has more tokens than the decoder has positions are named and left out.
"""

import argparse
from pathlib import Path

from espnet2.bin.aggregate_stats_dirs import aggregate_stats_dirs

from espnet_medusa.bin.command_line import make_main, positive, str2bool
from espnet_medusa.files.atomic import naming
from espnet_medusa.options import read_config
from espnet_medusa.recipe.long_texts import leave_out_long_texts, longest_text
from espnet_medusa.recipe.shapes import add_vocabulary_size


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--jobs", type=positive, required=True, help="number of jobs")
    parser.add_argument("--job_dir", required=True, help="statistics of each job, with JOB")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--token_list", type=Path, required=True)
    parser.add_argument("--token_type", required=True)
    parser.add_argument("--text_name", default="text", help="name of the text in the data")
    parser.add_argument(
        "--sum_stats", type=str2bool, default=True, help="sum feature statistics for global_mvn"
    )


def work(args: argparse.Namespace) -> None:
    """Join and write."""
    folders = [args.job_dir.replace("JOB", str(job)) for job in range(1, args.jobs + 1)]
    with naming(args.output_dir):
        aggregate_stats_dirs(folders, args.output_dir, "WARNING", not args.sum_stats)
    config = read_config(Path(folders[0]) / "config.yaml", "run stage 10 again")
    longest = longest_text(config.get("decoder"), config.get("decoder_conf"))
    for part in ("train", "valid"):
        shape_file = args.output_dir / part / f"{args.text_name}_shape"
        leave_out_long_texts(shape_file.parent, longest, args.text_name)
        add_vocabulary_size(shape_file, args.token_list, args.token_type)


main = make_main("aggregate_stats", __doc__, add_options, work)


if __name__ == "__main__":
    main()
