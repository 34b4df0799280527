"""What experiments hold: their decodings, by whatever command."""

from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.errors import InputError
from espnet_medusa.report.measures.decodings import Decoding, find_decodings
from espnet_medusa.report.measures.espnet_decodings import find_espnet_decodings


def check_experiments(exp_dirs: Sequence[Path]) -> None:
    """Refuse folders that are not there.

    Raises:
        InputError: With the first one's name.
    """
    for exp_dir in exp_dirs:
        if not exp_dir.is_dir():
            raise InputError(f"{exp_dir}: no such folder; give those that were trained")


def read_experiments(exp_dirs: Sequence[Path]) -> list[Decoding]:
    """All decodings of the experiments, ours before those of ESPnet's command.

    Raises:
        ValueError: A file of them is malformed.
    """
    return [
        decoding
        for exp_dir in exp_dirs
        for decoding in find_decodings([exp_dir]) + find_espnet_decodings(exp_dir)
    ]


def check_decoded(exp_dirs: Sequence[Path], decodings: Sequence[Decoding]) -> None:
    """Refuse experiments without a decoding.

    Raises:
        InputError: With the first one's name.
    """
    decoded = {decoding.exp_dir for decoding in decodings}
    for exp_dir in exp_dirs:
        if exp_dir not in decoded:
            raise InputError(
                f"{exp_dir}: no decoded set: there is no {exp_dir}/TAG/SET/text; decode (stage "
                "12), or give the experiment's own folder"
            )
