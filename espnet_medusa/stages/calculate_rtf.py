"""Real-time factor from inference logs: their `speech length` and `best hypo` lines in pairs."""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.recipe.rtf import calculate_rtf, parse_rate


def sample_rate(text: str) -> float:
    """Parse a rate in Hz; `16k` is 16000.

    Raises:
        argparse.ArgumentTypeError: Not a rate above 0.
    """
    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--log_dir", type=Path, required=True)
    parser.add_argument("--log_name", default="asr_inference", help="logs are LOG_NAME.*.log")
    parser.add_argument("--fs", type=sample_rate, default="16k", help="sample rate")


def work(args: argparse.Namespace) -> None:
    """Print the report."""
    logs = sorted(args.log_dir.glob(f"{args.log_name}.*.log"))
    print(calculate_rtf(logs, args.fs).report())


main = make_main("calculate_rtf", __doc__, add_options, work)


if __name__ == "__main__":
    main()
