"""Common to the recipe's commands: option types, the entry, and errors as one line."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

TRUE, FALSE = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")

AddOptions = Callable[[argparse.ArgumentParser], None]


def str2bool(value: str) -> bool:
    """Parse true or false, and what else ESPnet's options take for them.

    Raises:
        argparse.ArgumentTypeError: Another value.
    """
    if value.lower() not in (*TRUE, *FALSE):
        raise argparse.ArgumentTypeError(f"{value}: allowed are true and false")
    return value.lower() in TRUE


def positive(value: str) -> int:
    """Parse a whole number above 0.

    Raises:
        argparse.ArgumentTypeError: Another value.
    """
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value}: a whole number above 0 is needed")
    return int(value)


def whole_number(value: str) -> int:
    """Parse a whole number, 0 or more.

    Raises:
        argparse.ArgumentTypeError: Another value.
    """
    if not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{value}: a whole number is needed")
    return int(value)


def add_fields(parser: argparse.ArgumentParser, defaults: Any, **helps: str | None) -> None:
    """Add options with the names, types and defaults of a dataclass's fields.

    Args:
        parser: To add to.
        defaults: An instance of the dataclass; the fields are true or false, numbers or text.
        helps: What an option's help says, by name of the field; None: nothing.
    """
    for name, text in helps.items():
        value = getattr(defaults, name)
        kind = str2bool if isinstance(value, bool) else type(value)
        parser.add_argument(f"--{name}", type=kind, default=value, help=text)


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


def make_parser(description: str, add_options: AddOptions) -> argparse.ArgumentParser:
    """A parser whose help has the description's first line and the options' defaults."""
    parser = argparse.ArgumentParser(
        description=description.split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_options(parser)
    return parser


def make_main(
    name: str,
    description: str,
    add_options: AddOptions,
    work: Callable[[argparse.Namespace], int | None],
) -> Callable[[Sequence[str] | None], None]:
    """Build the entry of a command, which parses the options and works.

    Args:
        name: Name of the command, for messages.
        description: Text whose first line is shown in the help.
        add_options: Adds the options to the parser.
        work: Takes the options; returns an exit status, None for 0.
    """

    def main(cmd: Sequence[str] | None = None) -> None:
        args = make_parser(description, add_options).parse_args(cmd)
        run_main(name, lambda: work(args))

    return main


@contextmanager
def problems_to_stdout(nothing_written: str | None = None) -> Iterator[None]:
    """Errors of the data go to stdout, one line for each problem; the exit status is 1.

    Args:
        nothing_written: Said on stderr behind them.

    Raises:
        SystemExit: There was an error.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        print(error)
        if nothing_written:
            print(nothing_written, file=sys.stderr)
        raise SystemExit(1) from None
