"""Option types, options from dataclasses, and one-line errors for all commands."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from espnet_medusa.data.options import NONE

TRUE, FALSE = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")
EMPTY: Mapping[str, Any] = MappingProxyType({})
LOG_FORMAT = "%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s"
SOME_FAILED = 3  # exit status if some utterances or files failed and the others are finished

AddOptions = Callable[[argparse.ArgumentParser], None]


def str2bool(value: str) -> bool:
    """Parse true, false and ESPnet's synonyms."""
    if value.lower() not in (*TRUE, *FALSE):
        raise argparse.ArgumentTypeError(f"{value}: allowed are true and false")
    return value.lower() in TRUE


def whole_number(value: str, least: int = 0) -> int:
    """Parse an integer of at least ``least``."""
    if not value.isdecimal() or int(value) < least:
        raise argparse.ArgumentTypeError(f"{value}; allowed: an integer, {least} or more")
    return int(value)


def option_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make the type of an option from a function; its ValueErrors become the option's errors."""

    def parse_option(value: str) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_option


def positive(value: str) -> int:
    return whole_number(value, 1)


def add_fields(
    parser: argparse.ArgumentParser,
    defaults: Any,
    arguments: Mapping[str, Mapping[str, Any]] = EMPTY,
    default: Any = ...,
    **helps: str | None,
) -> None:
    """Add options with the names, types and values of the fields of a dataclass instance.

    Fields with a ``group`` are added to the parser's group of this title.

    Args:
        arguments: Arguments of ``add_argument`` for some fields, instead of those of their types.
        default: Default of all options, instead of the fields' values.
        helps: Help texts of the fields to add; if empty, add all fields made by ``option``.
    """
    types = get_type_hints(type(defaults))
    made = {field.name: field.metadata for field in fields(defaults) if field.metadata}
    helps = helps or {name: metadata["help"] for name, metadata in made.items()}
    for name, text in helps.items():
        kind = {"default": getattr(defaults, name)}
        kind |= arguments[name] if name in arguments else _parsing(types[name])
        kind |= {} if default is ... else {"default": default}
        group = made.get(name, EMPTY).get("group")
        target = parser if group is None else option_group(parser, group)
        target.add_argument(f"--{name}", help=text, **kind)


def option_group(parser: argparse.ArgumentParser, title: str) -> Any:
    """Return the parser's group of options with a title; the first call adds it."""
    groups = {group.title: group for group in parser._action_groups}
    return groups.get(title) or parser.add_argument_group(title)


def _parsing(annotation: Any) -> dict[str, Any]:
    """Return the arguments ``type`` and ``nargs`` for a field's annotation; a path stays text."""
    members = get_args(annotation) if isinstance(annotation, UnionType) else [annotation]
    kind = next(member for member in members if member not in (NoneType, Path))
    if get_origin(kind) is Sequence:
        return {"type": get_args(kind)[0], "nargs": "*"}
    parse = str2bool if kind is bool else kind
    return {"type": or_none(parse) if NoneType in members else parse}


def or_none(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make the type of an option that also accepts none."""

    def parse_or_none(value: str) -> Any:
        return None if value.strip().lower() in NONE else parse(value)

    parse_or_none.__name__ = f"{parse.__name__} or none"  # in errors of argparse
    return parse_or_none


def split_command(cmd: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Split a command line at its first `--` into options and the command to run."""
    words = list(sys.argv[1:] if cmd is None else cmd)
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def run_main(name: str, work: Callable[[], int | None]) -> None:
    """Run a command, and exit with its status; a user error becomes one line and status 1."""
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


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows a description as it is, and the defaults of options."""


HELP, HELP_ALL = "--help", "--help_all"


class ShortHelp(argparse.Action):
    """Prints the help of the options in ``const``, then exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: Sequence[str], **more: Any):
        super().__init__(option_strings, dest, nargs=0, const=const, **more)
        self.default = argparse.SUPPRESS

    def __call__(self, parser: argparse.ArgumentParser, *_) -> None:
        for action in parser._actions:
            if action.dest not in self.const and not {HELP, HELP_ALL} & {*action.option_strings}:
                action.help = argparse.SUPPRESS
        parser.print_help()
        parser.exit()


def make_parser(
    description: str, add_options: AddOptions, first: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Build a parser; ``first`` are the options in ``--help``, the others are in ``--help_all``."""
    style = {"description": description, "formatter_class": HelpFormatter}
    parser = argparse.ArgumentParser(**style, add_help=not first)
    if first:
        parser.add_argument("-h", HELP, action=ShortHelp, const=first, help="show these options")
        parser.add_argument(HELP_ALL, action="help", help="show all options")
    add_options(parser)
    return parser


def make_main(
    name: str,
    description: str,
    add_options: AddOptions,
    work: Callable[[argparse.Namespace], int | None],
    first: Sequence[str] = (),
) -> Callable[[Sequence[str] | None], None]:
    """Make the ``main`` of a command, which parses the options and calls ``work``.

    ``first``: as in ``make_parser``.
    """

    def main(cmd: Sequence[str] | None = None) -> None:
        args = make_parser(description, add_options, first).parse_args(cmd)
        run_main(name, lambda: work(args))

    return main


@contextmanager
def problems_to_stdout(note: str | None = None) -> Iterator[None]:
    """After an error of the data, print it to stdout and the note to stderr; exit with status 1."""
    try:
        yield
    except (ValueError, OSError) as error:
        print(error)
        if note:
            print(note, file=sys.stderr)
        raise SystemExit(1) from None
