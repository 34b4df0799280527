"""Split a table into runs of neighbouring lines, one for each job.

    python -m espnet_medusa.bin.split_scp --nj 4 dump/raw/test/wav.scp logdir/keys.JOB.scp

Prints the number of jobs: --nj, or fewer if there are fewer lines.
"""

import argparse
import sys
from pathlib import Path

from espnet_medusa.kaldi.split import split_scp
from espnet_medusa.kaldi.table import read_table, write_table

JOB = "JOB"


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nj", type=int, required=True, help="wanted number of jobs")
    parser.add_argument("input", help="table to split")
    parser.add_argument("output", help=f"name with {JOB} where the number of the job goes")
    return parser


def main(cmd: list[str] | None = None) -> None:
    """Run the command."""
    args = get_parser().parse_args(cmd)
    try:
        if JOB not in args.output:
            raise ValueError(f"{args.output}: the output needs {JOB} in its name")
        table = read_table(args.input, require_value=False)
        parts = split_scp(list(table), args.nj)
        for job, keys in enumerate(parts, 1):
            path = Path(args.output.replace(JOB, str(job)))
            write_table(path, {key: table[key] for key in keys})
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    print(len(parts))


if __name__ == "__main__":
    main()
