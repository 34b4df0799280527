"""Options of Kaldi's slurm.pl, and conf/slurm.conf, which maps them to options of sbatch."""

import shlex
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from espnet_medusa.data.errors import InputError

PROGRAM = "slurm.pl"
PREFIX_HELP = (
    "words before the command, such as `qrsh -cwd`; `slurm.pl --mem 4G` runs it as a Slurm job, "
    "with the options of conf/slurm.conf"
)
CONFIG = Path("conf/slurm.conf")
DEFAULT = Path(__file__).with_name("slurm.conf")
SYNTAX = "`command PROGRAM`, `option NAME=VALUE ARGUMENTS` or `default NAME=VALUE`"
ANY = "*"


@dataclass(frozen=True)
class Configuration:
    source: str  # name of the file, for messages
    command: tuple[str, ...]  # sbatch and its constant options
    # Name and value (``*``: any) to arguments, in which ``$0`` is the value.
    options: dict[tuple[str, str], str]
    defaults: dict[str, str]  # values of options that are not given

    def arguments(self, name: str, value: str) -> list[str]:
        """Return the arguments of sbatch for one option; raise InputError if there is none."""
        arguments = self.options.get((name, value), self.options.get((name, ANY)))
        if arguments is None:
            known = ", ".join(f"{known}={value}" for known, value in self.options)
            raise InputError(
                f"{PROGRAM} --{name} {value}: {self.source} has {known}; add a line "
                f"`option {name}=* ARGUMENTS`, in which $0 is the value"
            )
        return shlex.split(arguments.replace("$0", shlex.quote(value)))


@dataclass(frozen=True)
class Request:
    command: tuple[str, ...]  # sbatch and its options
    gpus: int = 0  # GPUs of each node
    nodes: int = 1  # nodes of each task
    most_at_once: int | None = None  # maximum number of parallel tasks; None: all


def parse_configuration(text: str, source: str) -> Configuration:
    """Parse a conf/slurm.conf: lines of `SYNTAX`, ``#`` begins a comment; or raise InputError."""
    command: tuple[str, ...] = ("sbatch",)
    options, defaults = {}, {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split(maxsplit=2)
        if not words:
            continue
        kind, (name, _, value) = words[0], "".join(words[1:2]).partition("=")
        arguments = "".join(words[2:])
        if kind == "command" and name:
            command = tuple(shlex.split(line.split("#")[0])[1:])
        elif kind == "option" and name and value:
            options[name, value] = arguments
        elif kind == "default" and name and value and not arguments:
            defaults[name] = value
        else:
            raise InputError(f"{source}:{number}: '{line.strip()}'; allowed: {SYNTAX}")
    return Configuration(source, command, options, defaults)


def read_configuration(path: Path | None) -> Configuration:
    """Read a configuration, by default conf/slurm.conf if it exists, else `DEFAULT`.

    Raises InputError if the file is missing or malformed.
    """
    if path is None:
        path = CONFIG if CONFIG.is_file() else DEFAULT
    if not path.is_file():
        raise InputError(f"{PROGRAM} --config {path}: no such file")
    return parse_configuration(path.read_text(encoding="utf-8"), str(path))


def is_slurm(prefix: str) -> bool:
    """Return whether a command's prefix, as in cmd.sh, is slurm.pl with its options."""
    words = shlex.split(prefix)
    return bool(words) and Path(words[0]).name == PROGRAM


def parse_request(prefix: str, threads: int = 1) -> Request:
    """Parse a prefix such as `slurm.pl --mem 4G --gpu 1`, in which the last of equal options wins.

    ``threads`` is the default of --num_threads. Raises InputError if an option is incomplete, not
    in the configuration, or not a number.
    """
    words = shlex.split(prefix)[1:]
    if len(words) % 2 or not all(word.startswith("--") for word in words[::2]):
        raise InputError(f"{PROGRAM} {shlex.join(words)}: options are --name value")
    names = [word[2:].replace("-", "_") for word in words[::2]]
    given = {} if threads == 1 else {"num_threads": str(threads)}
    given |= zip(names, words[1::2], strict=True)
    config = given.pop("config", None)
    configuration = read_configuration(None if config is None else Path(config))
    most_at_once = given.pop("max_jobs_run", None)
    values = configuration.defaults | given
    arguments = (configuration.arguments(name, value) for name, value in values.items())
    return Request(
        tuple(chain(configuration.command, *arguments)),
        gpus=_whole_number("gpu", values.get("gpu", "0")),
        nodes=_whole_number("num_nodes", values.get("num_nodes", "1")),
        most_at_once=most_at_once and _whole_number("max_jobs_run", most_at_once),
    )


def _whole_number(name: str, value: str) -> int:
    if not value.isdigit():
        raise InputError(f"{PROGRAM} --{name} {value}: allowed: a whole number")
    return int(value)
