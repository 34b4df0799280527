"""What Slurm is asked for: options of Kaldi's slurm.pl, and the conf/slurm.conf that maps them."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.errors import InputError

PROGRAM = "slurm.pl"
PREFIX_HELP = (
    "put before the command, such as `qrsh -cwd`; or slurm.pl and options, such as `slurm.pl "
    "--mem 4G`: a job of Slurm, by conf/slurm.conf"
)
CONFIG = Path("conf/slurm.conf")
DEFAULT = Path(__file__).with_name("slurm.conf")
SYNTAX = "`command PROGRAM`, `option NAME=VALUE ARGUMENTS` or `default NAME=VALUE`"
ANY = "*"


@dataclass(frozen=True)
class Configuration:
    """A conf/slurm.conf.

    Attributes:
        source: Its name, for messages.
        command: sbatch, and what is always behind it.
        options: Name and value (``*``: any) to arguments, in which ``$0`` is the value.
        defaults: Values of options that are not given.
    """

    source: str
    command: tuple[str, ...]
    options: dict[tuple[str, str], str]
    defaults: dict[str, str]

    def arguments(self, name: str, value: str) -> list[str]:
        """What one option adds to the command.

        Raises:
            InputError: The file does not have it.
        """
        found = self.options.get((name, value), self.options.get((name, ANY)))
        if found is None:
            known = ", ".join(f"{known}={value}" for known, value in self.options)
            raise InputError(
                f"{PROGRAM} --{name} {value}: {self.source} has {known}; add a line "
                f"`option {name}=* ARGUMENTS`, in which $0 is the value"
            )
        return shlex.split(found.replace("$0", shlex.quote(value)))


@dataclass(frozen=True)
class Request:
    """What a job asks Slurm for.

    Attributes:
        command: sbatch and its options.
        gpus: GPUs of each node.
        nodes: Nodes of each task.
        most_at_once: Tasks that may run side by side; None: all.
    """

    command: tuple[str, ...]
    gpus: int = 0
    nodes: int = 1
    most_at_once: int | None = None


def parse_configuration(text: str, source: str) -> Configuration:
    """Parse a conf/slurm.conf.

    Args:
        text: Lines of `SYNTAX`; ``#`` begins a comment.
        source: Its name, for messages.

    Raises:
        InputError: A line is none of these.
    """
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
    """The configuration of a file; None: of conf/slurm.conf where it is, else `DEFAULT`.

    Raises:
        InputError: The file is missing or malformed.
    """
    if path is None:
        path = CONFIG if CONFIG.is_file() else DEFAULT
    if not path.is_file():
        raise InputError(f"{PROGRAM} --config {path}: no such file")
    return parse_configuration(path.read_text(encoding="utf-8"), str(path))


def is_slurm(prefix: str) -> bool:
    """Whether a command's prefix, as cmd.sh has it, is slurm.pl with its options."""
    words = shlex.split(prefix)
    return bool(words) and Path(words[0]).name == PROGRAM


def parse_request(prefix: str, threads: int = 1) -> Request:
    """What `slurm.pl --mem 4G --gpu 1` asks for.

    Args:
        prefix: slurm.pl and its options; of equal ones the last counts.
        threads: Cores of each task, where no option says how many.

    Raises:
        InputError: An option is incomplete, not in the configuration, or not a number.
    """
    given = {} if threads == 1 else {"num_threads": str(threads)}
    given |= _parse_options(shlex.split(prefix)[1:])
    config = given.pop("config", None)
    configuration = read_configuration(None if config is None else Path(config))
    most_at_once = given.pop("max_jobs_run", None)
    values = configuration.defaults | given
    command = [*configuration.command]
    for name, value in values.items():
        command += configuration.arguments(name, value)
    return Request(
        tuple(command),
        gpus=_whole_number("gpu", values.get("gpu", "0")),
        nodes=_whole_number("num_nodes", values.get("num_nodes", "1")),
        most_at_once=most_at_once and _whole_number("max_jobs_run", most_at_once),
    )


def _parse_options(words: Sequence[str]) -> dict[str, str]:
    if len(words) % 2 or not all(word.startswith("--") for word in words[::2]):
        raise InputError(f"{PROGRAM} {shlex.join(words)}: options are --name value")
    names = [word[2:].replace("-", "_") for word in words[::2]]
    return dict(zip(names, words[1::2], strict=True))


def _whole_number(name: str, value: str) -> int:
    if not value.isdigit():
        raise InputError(f"{PROGRAM} --{name} {value}: a whole number is needed")
    return int(value)
