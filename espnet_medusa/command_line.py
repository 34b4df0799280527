"""Common to the recipe's commands: option types, and errors as one line."""

import argparse
import sys
from collections.abc import Callable, Sequence


def str2bool(value: str) -> bool:
    """Parse true or false, as ESPnet's options do.

    Raises:
        argparse.ArgumentTypeError: Another value.
    """
    if value.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{value}: allowed are true and false")
    return value.lower() == "true"


def positive(value: str) -> int:
    """Parse a whole number above 0.

    Raises:
        argparse.ArgumentTypeError: Another value.
    """
    if not value.isdigit() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value}: a whole number above 0 is needed")
    return int(value)


def split_command(cmd: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Split a command line at its first `--` into options and the command to run."""
    words = list(sys.argv[1:] if cmd is None else cmd)
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def run_main(name: str, work: Callable[[], int | None]) -> None:
    """Run a command's work; a user error becomes one line and exit status 1.

    Raises:
        SystemExit: The work failed, was interrupted, or returned a status other than 0.
    """
    try:
        status = work()
    except (ValueError, OSError) as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    if status:
        raise SystemExit(status)


def run_command(
    name: str,
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace, list[str]], int | None],
    cmd: Sequence[str] | None,
) -> None:
    """Run a command of the form `OPTIONS -- COMMAND`.

    Args:
        name: Of the command, for messages.
        parser: Of its options.
        work: Takes the options and the command to run.
        cmd: The command line; None is the process's own.

    Raises:
        SystemExit: As `run_main`; with status 2 when there is no command.
    """
    options, command = split_command(cmd)
    args = parser.parse_args(options)
    if not command:
        parser.error("nothing to run: write `-- COMMAND` at the end")
    run_main(name, lambda: work(args, command))
