"""Speakers of the training set who make the validation set, where there is no other."""

from collections.abc import Collection, Mapping
from pathlib import Path

from librispeech_corpus import Utterance

from espnet_medusa.errors import InputError


def check_speakers(speakers: Collection[str], subsets: Mapping[str, Path]) -> None:
    """Look for speakers in folders of training subsets, before any audio is read.

    Args:
        speakers: Ids of readers.
        subsets: Name to folder, which has a folder for each reader.

    Raises:
        InputError: There are no such subsets, one is in none of them, or nobody is left to train
            on.
    """
    if not subsets:
        raise InputError("--valid_speakers: no training set is chosen; choose one with --subsets")
    readers = {
        name: {path.name for path in folder.iterdir() if path.is_dir()}
        for name, folder in subsets.items()
    }
    known = sorted(set().union(*readers.values()))
    unknown = [speaker for speaker in speakers if speaker not in known]
    if unknown:
        raise InputError(
            f"--valid_speakers {' '.join(unknown)}: not in {', '.join(subsets)}; allowed are the"
            f" {len(known)} speakers there, such as {' '.join(known[:3])}"
        )
    for name, ids in readers.items():
        if ids <= set(speakers):
            raise InputError(
                f"--valid_speakers: all {len(ids)} speakers of {name} are named; leave some to"
                " train on"
            )


def hold_out(
    utterances: Mapping[str, Utterance], speakers: Collection[str]
) -> tuple[dict[str, Utterance], dict[str, Utterance]]:
    """Split utterances, by id, into those to train on and those of the speakers."""
    held_out = {key: u for key, u in utterances.items() if u.reader in speakers}
    return {key: u for key, u in utterances.items() if key not in held_out}, held_out
