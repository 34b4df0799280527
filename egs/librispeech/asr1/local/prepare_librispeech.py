"""Make Kaldi data directories of LibriSpeech, which is downloaded if it is missing.

Writes ``<output_dir>/<subset>`` with wav.scp, text, utt2spk, spk2utt, utt2lang, and spk2gender,
utt2gender if there is a SPEAKERS.TXT. Subsets are joined to train_460, train_960 and dev.
``<test set>_part`` (--test_utterances) and ``<test set>_chapters`` (--test_sets) are made of test
sets. Unusable utterances are named on stdout, left out, and listed in the subset's
bad_utterances. The exit status is 3 when any utterance or a whole test set is missing, and 1 when
nothing could be done.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from join_chapters import join_chapters
from librispeech_corpus import Utterance, read_genders, read_manifest, read_subset
from librispeech_files import (
    PARTS,
    SUBSETS,
    Subset,
    fetch_manifest,
    fetch_subset,
    find_subset,
    require_manifest,
)
from librispeech_options import CHAPTERS, PLAIN_CASES, Options, parse_options

from espnet_medusa.data.command_line import SOME_FAILED, run_main
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.data_dir import make_spk2utt
from espnet_medusa.data.kaldi.dump_dir import select_ids, write_dump_dir
from espnet_medusa.data.kaldi.table import DataProblem, read_table, write_table
from espnet_medusa.recipes.kaldi.format import BAD_UTTERANCES, table_line

COMBINED = {f"train_{hours}": PARTS[hours].train for hours in ("460", "960")}
VALIDATION = (PARTS["960"].valid, PARTS["5"].valid)


@dataclass
class DataSet:
    """The utterances and chosen transcripts of a data directory."""

    utterances: dict[str, Utterance]  # by id
    # Utterances that were left out, with reasons.
    problems: list[DataProblem] = field(default_factory=list)
    genders: dict[str, str] = field(default_factory=dict)  # reader to `f` or `m`
    held_out: dict[str, Utterance] = field(default_factory=dict)  # utterances to validate on, by id


def prepare_subset(name: str, folder: Path, manifest: Path | None, options: Options) -> DataSet:
    """Read a subset, choose its transcripts, print its problems, and write it.

    Raises:
        InputError: No utterance is usable, or the manifest has none of the utterances.
    """
    subset = SUBSETS[name]
    content = read_subset(folder, options.nj, name)
    notes: list[DataProblem] = []
    restored: dict[str, str] = {}
    if manifest is not None:
        restored, notes = read_manifest(manifest)
    data = DataSet(choose_texts(content.utterances, restored, options.plain_case), content.problems)
    speaker_file = folder.parent / "SPEAKERS.TXT"
    if speaker_file.is_file():
        data.genders, more_notes = read_genders(speaker_file)
        notes += more_notes
    if subset.is_train:
        speakers, utterances = options.valid_speakers, data.utterances
        data.held_out = {key: u for key, u in utterances.items() if u.reader in speakers}
        data.utterances = {key: u for key, u in utterances.items() if key not in data.held_out}
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
        chosen = spread(data.utterances, options.test_utterances)
        part = replace(data, utterances={key: data.utterances[key] for key in chosen})
        write_data_dir(options.output_dir / f"{subset.set_name}_part", part)
    print(summary(subset, data, n_plain), file=sys.stderr)
    return data


def spread(ids: Iterable[str], count: int) -> list[str]:
    """Return at most `count` ids, evenly spaced in their order."""
    keys = sorted(ids)
    return keys if count >= len(keys) else [keys[n * len(keys) // count] for n in range(count)]


def choose_texts(
    utterances: Mapping[str, Utterance], restored: Mapping[str, str], plain_case: str
) -> dict[str, Utterance]:
    """Return utterances with restored transcripts, or else the plain ones in `plain_case`."""
    write_plain = PLAIN_CASES[plain_case]
    return {
        key: replace(utterance, text=restored.get(key, write_plain(utterance.text)))
        for key, utterance in utterances.items()
    }


def summary(subset: Subset, data: DataSet, n_plain: int | None) -> str:
    """Return one line on a set's size and its number of plain transcripts."""
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
    """Return the duration of the audio without held-out utterances."""
    return sum(utterance.duration_s for utterance in data.utterances.values()) / 3600


def combine(name: str, parts: Iterable[DataSet], max_s: float | None = None) -> DataSet:
    """Join data sets without utterances above `max_s` seconds.

    Raises:
        InputError: An utterance is in two of them, or all are too long.
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
    short = {k: u for k, u in utterances.items() if max_s is None or u.duration_s <= max_s}
    if not short:
        raise InputError(
            f"{name}: has no utterance of up to {max_s:g} s; name other --valid_speakers, or raise"
            " --max_valid_s"
        )
    joined = DataSet(short, genders=genders)
    line = f"{name}: {len(short)} utterances, {hours(joined):.2f} h"
    if len(short) < len(utterances):
        line += f", {len(utterances) - len(short)} above {max_s:g} s left out"
    print(line, file=sys.stderr)
    return joined


def validation_parts(sets: Mapping[str, DataSet], options: Options) -> list[DataSet]:
    """Return the parts of the validation set: held-out speakers, or else prepared dev subsets."""
    if options.valid_speakers:
        return [DataSet(data.held_out, genders=data.genders) for data in sets.values()]
    names = next((parts for parts in VALIDATION if all(n in sets for n in parts)), ())
    return [sets[name] for name in names]


def write_data_dir(folder: Path, data: DataSet) -> None:
    """Write a data directory; wav.scp is last, so that an interrupted run leaves none."""
    for name in ("wav.scp", "spk2gender", "utt2gender", BAD_UTTERANCES):
        (folder / name).unlink(missing_ok=True)
    utterances = data.utterances
    utt2spk = {key: utterance.speaker for key, utterance in utterances.items()}
    known = {k: data.genders[u.reader] for k, u in utterances.items() if u.reader in data.genders}
    if known:
        write_table(folder / "utt2gender", known)
        write_table(folder / "spk2gender", {utt2spk[key]: known[key] for key in known})
    if data.problems:
        write_table(folder / BAD_UTTERANCES, dict(map(table_line, data.problems)))
    write_table(folder / "text", {key: utterance.text for key, utterance in utterances.items()})
    write_table(folder / "utt2spk", utt2spk)
    write_table(folder / "spk2utt", make_spk2utt(utt2spk))
    write_table(folder / "utt2lang", dict.fromkeys(utterances, "en"))
    write_table(folder / "wav.scp", {key: str(u.audio) for key, u in utterances.items()})


def prepare(options: Options) -> int:
    """Prepare all sets and return the exit status.

    Raises:
        InputError, OSError: A subset or manifest is missing, unusable, or cannot be downloaded.
            Missing test sets are allowed, unless all are missing.
    """
    # All files are found before any is read, because reading takes hours.
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
            join_test_chapters(SUBSETS[name], options)
    incomplete = [name for name in sets if sets[name].problems]
    for name in incomplete:
        bad = options.output_dir / SUBSETS[name].set_name / BAD_UTTERANCES
        print(f"{name}: not complete, see {bad}", file=sys.stderr)
    return SOME_FAILED if incomplete or missing else 0


def check_speakers(speakers: Collection[str], subsets: Mapping[str, Path]) -> None:
    """Check that readers are in the folders of training subsets, before any audio is read.

    Raises:
        InputError: There are no such subsets, a reader is in none of them, or a subset has no
            other readers.
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
            f"--valid_speakers {' '.join(unknown)}: not in {', '.join(subsets)}; allowed: the"
            f" {len(known)} speakers there, such as {' '.join(known[:3])}"
        )
    for name, ids in readers.items():
        if ids <= set(speakers):
            raise InputError(
                f"--valid_speakers: all {len(ids)} speakers of {name} are named; leave some to"
                " train on"
            )


def join_test_chapters(subset: Subset, options: Options) -> None:
    """Make `<set>_chapters`, and its part, from the data directory of a test subset.

    Raises:
        InputError: The audio cannot be joined.
    """
    joined = options.output_dir / f"{subset.set_name}{CHAPTERS}"
    count = join_chapters(options.output_dir / subset.set_name, joined)
    print(f"{joined.name}: {count} chapters of {subset.set_name}", file=sys.stderr)
    if options.test_utterances is None:
        return
    names = "wav.scp", "text", "utt2spk", "utt2lang"
    tables = {name: read_table(joined / name) for name in names}
    part = Path(f"{joined}_part")
    part.mkdir(exist_ok=True)
    chosen = spread(tables["wav.scp"], options.test_utterances)
    write_dump_dir(part, select_ids(tables, chosen))


def find_subsets(options: Options) -> tuple[dict[str, Path], dict[str, str]]:
    """Find or download all subsets; after a failure the others are still downloaded.

    Returns:
        Folders by subset, and the error of each missing test set.

    Raises:
        InputError: A training or validation set is missing, or all sets are.
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


def main(cmd: Sequence[str] | None = None) -> None:
    """Run the command line ``cmd`` (default: this process's)."""
    options = parse_options(cmd, __doc__.split("\n")[0])
    run_main("prepare_librispeech", lambda: prepare(options))


if __name__ == "__main__":
    main()
