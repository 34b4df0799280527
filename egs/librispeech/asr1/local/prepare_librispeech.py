"""LibriSpeech as Kaldi data directories, downloaded where it is missing.

Writes ``<output_dir>/<subset>`` (wav.scp, text, utt2spk, spk2utt, utt2lang, and spk2gender,
utt2gender where SPEAKERS.TXT is), and of these the sets train_460, train_960 and dev. What cannot
be used is named on stdout, one line each, and left out; the subset's file bad_utterances lists it.
Ends with status 3 when anything of a set, or a whole test set, is not there, and 1 when nothing
could be done.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from librispeech_corpus import Utterance, read_genders, read_subset
from librispeech_files import (
    EVALUATION,
    OPENSLR,
    SUBSETS,
    TRAIN_PARTS,
    Subset,
    fetch_manifest,
    fetch_subset,
    find_subset,
    require_manifest,
)
from librispeech_pc import read_manifest

from espnet_medusa.bin.command_line import positive, run_main, str2bool
from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.data_dir import make_spk2utt
from espnet_medusa.kaldi.format import BAD_UTTERANCES
from espnet_medusa.kaldi.problem import DataProblem
from espnet_medusa.kaldi.table import write_table

INCOMPLETE = 3
PLAIN_CASES = {"lower": str.lower, "upper": str.upper}
VALIDATION_PARTS = ("dev-clean", "dev-other")
COMBINED = {"dev": VALIDATION_PARTS} | {f"train_{n}": TRAIN_PARTS[n] for n in ("460", "960")}


@dataclass(frozen=True)
class Options:
    """What to prepare, and from where.

    Attributes:
        subsets: Names of LibriSpeech's subsets.
        librispeech: An existing copy; None downloads.
        download_dir: Where downloads go.
        librispeech_pc: Whether to take restored transcripts where there are any.
        librispeech_pc_dir: Existing manifests; None downloads.
        plain_case: How transcripts without restoration are written: LibriSpeech's upper case is
            many more of Whisper's tokens than lower case.
        max_valid_s: Longer utterances are left out of the validation set `dev`: Whisper's window.
        output_dir: Where data directories go.
        nj: Audio files to read at a time.
        openslr: Where to download from: openslr's address or a mirror's.
    """

    subsets: tuple[str, ...]
    librispeech: Path | None = None
    download_dir: Path = Path("downloads")
    librispeech_pc: bool = True
    librispeech_pc_dir: Path | None = None
    plain_case: str = "lower"
    max_valid_s: float = 30.0
    output_dir: Path = Path("data")
    nj: int = 4
    openslr: str = OPENSLR


@dataclass
class DataSet:
    """The utterances of a data directory, with the transcripts that it will have.

    Attributes:
        utterances: By id.
        problems: What was left out.
        genders: Reader to `f` or `m`.
    """

    utterances: dict[str, Utterance]
    problems: list[DataProblem] = field(default_factory=list)
    genders: dict[str, str] = field(default_factory=dict)


def prepare_subset(name: str, folder: Path, manifest: Path | None, options: Options) -> DataSet:
    """Read a subset, choose its transcripts, say what is wrong with it, and write it.

    Raises:
        InputError: Nothing is left, or the manifest is of something else.
    """
    subset = SUBSETS[name]
    content = read_subset(folder, options.nj, name)
    notes: list[DataProblem] = []
    restored: dict[str, str] = {}
    if manifest is not None:
        restored, notes = read_manifest(manifest)
    data = DataSet(choose_texts(content.utterances, restored, options.plain_case), content.problems)
    speakers = folder.parent / "SPEAKERS.TXT"
    if speakers.is_file():
        data.genders, more_notes = read_genders(speakers)
        notes += more_notes
    for problem in content.problems + notes:
        print(problem)
    if not data.utterances:
        raise InputError(f"{folder}: none of its utterances can be used; unpack {name} again")
    n_plain = None if manifest is None else len(data.utterances.keys() - restored.keys())
    if n_plain == len(data.utterances):
        raise InputError(
            f"{manifest}: names none of the {len(data.utterances)} utterances in {folder}; unpack"
            " the manifests again, or give --librispeech_pc false"
        )
    write_data_dir(options.output_dir / subset.set_name, data)
    print(summary(subset, data, n_plain), file=sys.stderr)
    return data


def choose_texts(
    utterances: Mapping[str, Utterance], restored: Mapping[str, str], plain_case: str
) -> dict[str, Utterance]:
    """Give each utterance its restored transcript, or else the plain one in `plain_case`."""
    write_plain = PLAIN_CASES[plain_case]
    return {
        key: replace(utterance, text=restored.get(key, write_plain(utterance.text)))
        for key, utterance in utterances.items()
    }


def summary(subset: Subset, data: DataSet, n_plain: int | None) -> str:
    """Say in one line what a set has, and how many of its transcripts are plain ones."""
    hours = sum(utterance.duration_s for utterance in data.utterances.values()) / 3600
    line = f"{subset.set_name}: {len(data.utterances)} utterances"
    line += f" ({subset.n_utterances} published), {hours:.2f} h"
    if n_plain is not None:
        line += f", {n_plain} not in LibriSpeech-PC: plain transcript"
    if data.problems:
        line += f", {len(data.problems)} left out"
    return line


def combine(name: str, parts: Iterable[DataSet], max_s: float | None = None) -> DataSet:
    """Join data sets; utterances above `max_s` seconds are left out.

    Raises:
        InputError: An utterance is in two of them.
    """
    utterances: dict[str, Utterance] = {}
    genders: dict[str, str] = {}
    for part in parts:
        twice = sorted(utterances.keys() & part.utterances.keys())
        if twice:
            raise InputError(
                f"{name}: {twice[0]} is in two subsets ({utterances[twice[0]].audio} and"
                f" {part.utterances[twice[0]].audio}); unpack the corpus again"
            )
        utterances |= part.utterances
        genders |= part.genders
    kept = {k: u for k, u in utterances.items() if max_s is None or u.duration_s <= max_s}
    line = f"{name}: {len(kept)} utterances"
    if len(kept) < len(utterances):
        line += f", {len(utterances) - len(kept)} above {max_s:g} s left out"
    print(line, file=sys.stderr)
    return DataSet(kept, genders=genders)


def write_data_dir(folder: Path, data: DataSet) -> None:
    """Write a data directory; wav.scp comes last, so that a run cut off leaves none."""
    for name in ("wav.scp", "spk2gender", "utt2gender", BAD_UTTERANCES):
        (folder / name).unlink(missing_ok=True)
    utterances = data.utterances
    utt2spk = {key: utterance.speaker for key, utterance in utterances.items()}
    known = {k: data.genders[u.reader] for k, u in utterances.items() if u.reader in data.genders}
    if known:
        write_table(folder / "utt2gender", known)
        write_table(folder / "spk2gender", {utt2spk[key]: known[key] for key in known})
    if data.problems:
        write_table(folder / BAD_UTTERANCES, dict(map(_listed, data.problems)))
    write_table(folder / "text", {key: utterance.text for key, utterance in utterances.items()})
    write_table(folder / "utt2spk", utt2spk)
    write_table(folder / "spk2utt", make_spk2utt(utt2spk))
    write_table(folder / "utt2lang", dict.fromkeys(utterances, "en"))
    write_table(folder / "wav.scp", {key: str(u.audio) for key, u in utterances.items()})


def _listed(problem: DataProblem) -> tuple[str, str]:
    reason = f"{Path(problem.file).name}: {problem.message}; {problem.remedy}"
    return "_".join(problem.id.split()), " ".join(reason.split())


def prepare(options: Options) -> int:
    """Prepare all sets; returns the exit status.

    Raises:
        InputError, OSError: A subset or manifest is missing, unusable, or cannot be downloaded; of
            the test sets, all of them.
    """
    # All of the corpus first: hours of reading must not end at a file that was never there.
    folders, missing = find_subsets(options)
    manifests = {name: _manifest(name, options) for name in folders}
    for problem in missing.values():
        print(problem)
    sets = {
        name: prepare_subset(name, folder, manifests[name], options)
        for name, folder in folders.items()
    }
    for combined, parts in COMBINED.items():
        if all(name in sets for name in parts):
            max_s = options.max_valid_s if parts == VALIDATION_PARTS else None
            joined = combine(combined, [sets[name] for name in parts], max_s)
            write_data_dir(options.output_dir / combined, joined)
    incomplete = [name for name in sets if sets[name].problems]
    for name in incomplete:
        bad = options.output_dir / SUBSETS[name].set_name / BAD_UTTERANCES
        print(f"{name}: not complete, see {bad}", file=sys.stderr)
    return INCOMPLETE if incomplete or missing else 0


def find_subsets(options: Options) -> tuple[dict[str, Path], dict[str, str]]:
    """Find or fetch all subsets; one that fails does not keep the others from being fetched.

    Returns:
        Folders by subset, and why test sets are not there.

    Raises:
        InputError: A set to train or validate on is not there, or no set at all.
    """
    folders, missing = {}, {}
    for name in options.subsets:
        try:
            folders[name] = _subset_folder(name, options)
        except InputError as error:
            missing[name] = f"{name}: {error}"
    needed = [problem for name, problem in missing.items() if not SUBSETS[name].is_test]
    if needed or not folders:
        raise InputError("; ".join(missing.values()))
    return folders, missing


def _subset_folder(name: str, options: Options) -> Path:
    if options.librispeech is not None:
        return find_subset(options.librispeech, name)
    return fetch_subset(options.download_dir, SUBSETS[name], options.openslr)


def _manifest(name: str, options: Options) -> Path | None:
    if not options.librispeech_pc:
        return None
    if options.librispeech_pc_dir is not None:
        return require_manifest(options.librispeech_pc_dir, name)
    return fetch_manifest(options.download_dir / "LibriSpeech-PC", name, options.openslr)


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    defaults = Options(())
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--part", choices=TRAIN_PARTS, default="960", help="hours to train on; dev and test too"
    )
    parser.add_argument(
        "--subsets", nargs="+", choices=SUBSETS, help="exactly these, instead of --part"
    )
    parser.add_argument(
        "--librispeech",
        type=Path,
        help="LibriSpeech, unpacked, or the folder that holds it; none: download",
    )
    parser.add_argument("--download_dir", type=Path, default=defaults.download_dir)
    parser.add_argument(
        "--librispeech_pc",
        type=str2bool,
        default=defaults.librispeech_pc,
        help="restored punctuation and case where there is any",
    )
    parser.add_argument(
        "--librispeech_pc_dir", type=Path, help="its manifests, unpacked; none: download"
    )
    parser.add_argument(
        "--plain_case",
        choices=PLAIN_CASES,
        default=defaults.plain_case,
        help="how transcripts without restoration are written",
    )
    parser.add_argument(
        "--max_valid_s",
        type=float,
        default=defaults.max_valid_s,
        help="longer utterances are left out of dev, which is for validation",
    )
    parser.add_argument("--output_dir", type=Path, default=defaults.output_dir)
    parser.add_argument("--nj", type=positive, default=defaults.nj, help="files read at a time")
    parser.add_argument("--openslr", default=defaults.openslr, help="address, or a mirror's")
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    """Run the command line ``cmd`` (default: this process's)."""
    arguments = vars(get_parser().parse_args(cmd))
    part, subsets = arguments.pop("part"), arguments.pop("subsets")
    chosen = tuple(dict.fromkeys(subsets or (*TRAIN_PARTS[part], *EVALUATION)))
    options = Options(subsets=chosen, **arguments)
    run_main("prepare_librispeech", lambda: prepare(options))


if __name__ == "__main__":
    main()
