"""LibriSpeech as Kaldi data directories, downloaded where it is missing.

Writes ``<output_dir>/<subset>`` (wav.scp, text, utt2spk, spk2utt, utt2lang, and spk2gender,
utt2gender where SPEAKERS.TXT is), and of these the sets train_460, train_960 and dev; dev may be
speakers of the training set, who then leave it. With --test_utterances there is a part of each test
set, too, such as test_clean_part; test_clean_chapters among --test_sets has the chapters of
test_clean, each one recording. What cannot be used is named on stdout, one line
each, and left out; the subset's file bad_utterances lists it. Ends with status 3 when anything of
a set, or a whole test set, is not there, and 1 when nothing could be done.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from join_chapters import join_chapters
from librispeech_corpus import Utterance, read_genders, read_subset
from librispeech_files import (
    OPENSLR,
    PARTS,
    SUBSETS,
    TEST_SETS,
    Subset,
    fetch_manifest,
    fetch_subset,
    find_subset,
    require_manifest,
)
from librispeech_pc import read_manifest
from valid_speakers import check_speakers, hold_out

from espnet_medusa.bin.command_line import positive, run_main, str2bool
from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.data_dir import make_spk2utt
from espnet_medusa.kaldi.format import BAD_UTTERANCES
from espnet_medusa.kaldi.table import DataProblem, write_table

INCOMPLETE = 3
CHAPTERS = "_chapters"
PLAIN_CASES = {"lower": str.lower, "upper": str.upper}
COMBINED = {f"train_{hours}": PARTS[hours].train for hours in ("460", "960")}
VALIDATION = (PARTS["960"].valid, PARTS["5"].valid)


@dataclass(frozen=True)
class Options:
    """What to prepare, and from where.

    Attributes:
        subsets: Names of LibriSpeech's subsets.
        librispeech: Folders of existing copies; none: download.
        valid_speakers: Ids of readers who leave the training set and make the validation set.
        download_dir: Where downloads go.
        librispeech_pc: Whether to take restored transcripts where there are any.
        librispeech_pc_dir: Existing manifests; None downloads.
        plain_case: How transcripts without restoration are written: LibriSpeech's upper case is
            many more of Whisper's tokens than lower case.
        max_valid_s: Longer utterances are left out of the validation set `dev`: Whisper's window.
        test_utterances: Of each test set `<set>`, spread evenly over it, that `<set>_part` has;
            None: there is no such set.
        chapters: Names of test subsets whose chapters are joined, too, as `<set>_chapters`.
        output_dir: Where data directories go.
        nj: Audio files to read at a time.
        openslr: Where to download from: openslr's address or a mirror's.
    """

    subsets: tuple[str, ...]
    librispeech: tuple[Path, ...] = ()
    valid_speakers: tuple[str, ...] = ()
    download_dir: Path = Path("downloads")
    librispeech_pc: bool = True
    librispeech_pc_dir: Path | None = None
    plain_case: str = "lower"
    max_valid_s: float = 30.0
    test_utterances: int | None = None
    chapters: tuple[str, ...] = ()
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
        held_out: Utterances to validate on, by id.
    """

    utterances: dict[str, Utterance]
    problems: list[DataProblem] = field(default_factory=list)
    genders: dict[str, str] = field(default_factory=dict)
    held_out: dict[str, Utterance] = field(default_factory=dict)


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
    if subset.is_train:
        data.utterances, data.held_out = hold_out(data.utterances, options.valid_speakers)
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
    if subset.is_test and options.test_utterances is not None:
        part = replace(data, utterances=spread(data.utterances, options.test_utterances))
        write_data_dir(options.output_dir / f"{subset.set_name}_part", part)
    print(summary(subset, data, n_plain), file=sys.stderr)
    return data


def spread(utterances: Mapping[str, Utterance], count: int) -> dict[str, Utterance]:
    """So many of the utterances, or all, at even distances in the order of their ids."""
    keys = sorted(utterances)
    chosen = keys if count >= len(keys) else [keys[n * len(keys) // count] for n in range(count)]
    return {key: utterances[key] for key in chosen}


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
    line = f"{subset.set_name}: {len(data.utterances)} utterances"
    line += f" ({subset.n_utterances} published), {hours(data):.2f} h"
    if data.held_out:
        line += f", {len(data.held_out)} held out to validate on"
    if n_plain is not None:
        line += f", {n_plain} not in LibriSpeech-PC: plain transcript"
    if data.problems:
        line += f", {len(data.problems)} left out"
    return line


def hours(data: DataSet) -> float:
    """Of its audio, without what is held out."""
    return sum(utterance.duration_s for utterance in data.utterances.values()) / 3600


def combine(name: str, parts: Iterable[DataSet], max_s: float | None = None) -> DataSet:
    """Join data sets; utterances above `max_s` seconds are left out.

    Raises:
        InputError: An utterance is in two of them, or none is left.
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
    if not kept:
        raise InputError(
            f"{name}: has no utterance of up to {max_s:g} s; name other --valid_speakers, or raise"
            " --max_valid_s"
        )
    joined = DataSet(kept, genders=genders)
    line = f"{name}: {len(kept)} utterances, {hours(joined):.2f} h"
    if len(kept) < len(utterances):
        line += f", {len(utterances) - len(kept)} above {max_s:g} s left out"
    print(line, file=sys.stderr)
    return joined


def validation_parts(sets: Mapping[str, DataSet], options: Options) -> list[DataSet]:
    """What makes the validation set: speakers held out, or else dev subsets where they are."""
    if options.valid_speakers:
        return [DataSet(data.held_out, genders=data.genders) for data in sets.values()]
    names = next((parts for parts in VALIDATION if all(n in sets for n in parts)), ())
    return [sets[name] for name in names]


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
    if options.valid_speakers:
        train = {name: folder for name, folder in folders.items() if SUBSETS[name].is_train}
        check_speakers(options.valid_speakers, train)
    manifests = {name: _manifest(name, options) for name in folders}
    for problem in missing.values():
        print(problem)
    sets = {
        name: prepare_subset(name, folder, manifests[name], options)
        for name, folder in folders.items()
    }
    for combined, parts in COMBINED.items():
        if all(name in sets for name in parts):
            joined = combine(combined, [sets[name] for name in parts])
            write_data_dir(options.output_dir / combined, joined)
    if parts := validation_parts(sets, options):
        write_data_dir(options.output_dir / "dev", combine("dev", parts, options.max_valid_s))
    for name in options.chapters:
        if name in sets:
            join_test_chapters(SUBSETS[name], options.output_dir)
    incomplete = [name for name in sets if sets[name].problems]
    for name in incomplete:
        bad = options.output_dir / SUBSETS[name].set_name / BAD_UTTERANCES
        print(f"{name}: not complete, see {bad}", file=sys.stderr)
    return INCOMPLETE if incomplete or missing else 0


def join_test_chapters(subset: Subset, folder: Path) -> None:
    """Make `<set>_chapters` of the data directory of a test subset.

    Raises:
        InputError: Its audio cannot be joined.
    """
    joined = folder / f"{subset.set_name}{CHAPTERS}"
    count = join_chapters(folder / subset.set_name, joined)
    print(f"{joined.name}: {count} chapters of {subset.set_name}", file=sys.stderr)


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
    if options.librispeech:
        return find_subset(options.librispeech, name)
    return fetch_subset(options.download_dir, SUBSETS[name], options.openslr)


def _manifest(name: str, options: Options) -> Path | None:
    if not options.librispeech_pc:
        return None
    manifest = SUBSETS[name].manifest_name
    if options.librispeech_pc_dir is not None:
        return require_manifest(options.librispeech_pc_dir, manifest)
    return fetch_manifest(options.download_dir / "LibriSpeech-PC", manifest, options.openslr)


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    defaults = Options(())
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--part",
        choices=PARTS,
        default="960",
        help="hours to train on; 5: mini_librispeech, whose restored transcripts are those of"
        " train-clean-100 and dev-clean",
    )
    parser.add_argument(
        "--valid_speakers",
        nargs="+",
        metavar="ID",
        help="of the training set, such as 7367: their utterances leave it and make the validation"
        " set; none: dev subsets make it",
    )
    parser.add_argument(
        "--test_sets",
        nargs="*",
        choices=[*TEST_SETS, *(f"{name}{CHAPTERS}" for name in TEST_SETS)],
        default=[*TEST_SETS],
        help="which to prepare; <set>_chapters: each chapter's utterances joined",
    )
    parser.add_argument(
        "--subsets",
        nargs="+",
        choices=SUBSETS,
        help="exactly these, instead of --part and --test_sets",
    )
    parser.add_argument(
        "--librispeech",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="LibriSpeech, unpacked, or the folder that holds it; subsets may lie in several;"
        " none: download",
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
    parser.add_argument(
        "--test_utterances",
        type=positive,
        help="a set <test set>_part, too, of so many utterances, spread evenly over the test set",
    )
    parser.add_argument("--output_dir", type=Path, default=defaults.output_dir)
    parser.add_argument("--nj", type=positive, default=defaults.nj, help="files read at a time")
    parser.add_argument("--openslr", default=defaults.openslr, help="address, or a mirror's")
    return parser


def main(cmd: Sequence[str] | None = None) -> None:
    """Run the command line ``cmd`` (default: this process's)."""
    arguments = vars(get_parser().parse_args(cmd))
    part, subsets = PARTS[arguments.pop("part")], arguments.pop("subsets")
    asked = arguments.pop("test_sets")
    tests = [TEST_SETS[name.removesuffix(CHAPTERS)] for name in asked]
    chapters = [TEST_SETS[n.removesuffix(CHAPTERS)] for n in asked if n.endswith(CHAPTERS)]
    if not subsets:
        subsets = [*part.train, *(() if arguments["valid_speakers"] else part.valid), *tests]
    for name in ("librispeech", "valid_speakers"):
        arguments[name] = tuple(arguments[name] or ())
    arguments["chapters"] = tuple(dict.fromkeys(chapters))
    options = Options(subsets=tuple(dict.fromkeys(subsets)), **arguments)
    run_main("prepare_librispeech", lambda: prepare(options))


if __name__ == "__main__":
    main()
