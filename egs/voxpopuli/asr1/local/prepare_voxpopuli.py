"""Make Kaldi data directories of VoxPopuli, which is downloaded if it is missing.

--setup supervised writes ``<output_dir>/{train,dev,test}_<lang>``. --setup self_supervised writes
``test_<lang>`` and ``unlabelled_<lang>``, which has segments but no text, and divides it into
``{train,dev}_<lang>_unlabelled``: whole sessions are for validation, and audio of the test set is
left out (listed in ``dropped_utterances`` of the training set). Each directory has utt2lang and
utt2session, ``<id> <session> <start> <end>``, which includes unusable test utterances. Unusable
utterances are named on stdout and left out; bad_utterances lists unusable audio. The exit status
is 3 when any are left out, and 1 when nothing could be done.
"""

import argparse
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm
from voxpopuli_corpus import (
    BASE_URL,
    ORIGINAL,
    SPLITS,
    TRANSCRIBED_LANGUAGES,
    Corpus,
    fetch_annotation,
    fetch_audio,
    fetch_segment_table,
)
from voxpopuli_sessions import (
    UTT2SESSION,
    DivisionOptions,
    divide,
    read_places,
    read_usable_places,
    write_subset,
)
from voxpopuli_transcripts import TEXT_COLUMNS, Transcript, read_transcripts
from voxpopuli_unlabelled import (
    MAX_OVERSHOOT_S,
    find_sessions,
    read_segment_table,
    segment_sessions,
)

from espnet_medusa.data.audio.reader import measure_audio
from espnet_medusa.data.audio.source import AudioError
from espnet_medusa.data.audio.speech_segments import MIN_SEGMENT_S
from espnet_medusa.data.command_line import SOME_FAILED, positive, run_main
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.data_dir import make_spk2utt
from espnet_medusa.data.kaldi.table import DataProblem, write_table
from espnet_medusa.data.options import check_above
from espnet_medusa.recipes.kaldi.format import BAD_UTTERANCES, table_line

SETUPS = ("supervised", "self_supervised")
SEGMENTATIONS = ("auto", "official", "silence")


@dataclass(frozen=True)
class Options:
    """Options of the data preparation."""

    lang: str  # one of the transcribed languages
    setup: str = "supervised"  # one of SETUPS
    voxpopuli: Path | None = None  # an existing copy; None downloads
    download_dir: Path = Path("downloads/voxpopuli")  # where downloads go
    text: str = "raw"  # kind of transcripts: raw (punctuation and case) or normalized
    years: tuple[str, ...] = ("2019", "2020")  # years of the unlabelled sessions
    # Segments of the unlabelled sessions: official (VoxPopuli's table), silence, or auto: official
    # for the sessions in the table.
    segmentation: str = "silence"
    max_segment_s: float = 30.0  # maximum duration of an unlabelled segment
    max_train_s: float = 30.0  # maximum duration of an utterance in train and dev: Whisper's window
    # Share of the unlabelled segments to validate on, in whole sessions; 0: no set.
    valid_fraction: float = DivisionOptions.valid_fraction
    # Seconds around test utterances that are left out of the unlabelled sets.
    margin_s: float = DivisionOptions.margin_s
    output_dir: Path = Path("data")  # folder of the data directories
    nj: int = 4  # number of audio files that are read in parallel
    base_url: str = BASE_URL  # address of the corpus

    @property
    def corpus(self) -> Corpus:
        """The existing or downloaded copy."""
        return Corpus(self.voxpopuli or self.download_dir)


@dataclass
class DataSet:
    """The tables of a data directory."""

    # Audio by session, or by utterance where there are no segments.
    wav_scp: dict[str, str] = field(default_factory=dict)
    # `<session> <start> <end>` by utterance; empty for audio of single utterances.
    segments: dict[str, str] = field(default_factory=dict)
    # The same for all utterances, with unusable audio, too; from 0 to -1 if times are unknown.
    utt2session: dict[str, str] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)  # transcripts; empty for unlabelled audio
    utt2spk: dict[str, str] = field(default_factory=dict)  # speakers
    problems: list[DataProblem] = field(default_factory=list)  # unusable utterances, with reasons
    n_long: int = 0  # number of utterances that were left out because they are too long


def transcribed_set(
    corpus: Corpus, utterances: Iterable[Transcript], nj: int, max_s: float | None = None
) -> DataSet:
    """Match transcripts with audio; unusable utterances become problems.

    Args:
        nj: Number of audio files that are read in parallel.
        max_s: Maximum duration in seconds; None: any.
    """
    data, utterances = DataSet(), list(utterances)
    paths = {u: u.audio or corpus.session_audio(u.session, ORIGINAL) for u in utterances}
    durations = measure_all(set(paths.values()), nj)
    for utterance, path in paths.items():
        measured = durations[path]
        key = utterance.utterance_id
        times = f"{utterance.session} {utterance.start_s:.3f} {utterance.end_s:.3f}"
        data.utt2session[key] = times
        if problem := _find_problem(utterance, path, measured):
            data.problems.append(problem)
            continue
        length_s = measured if utterance.audio else utterance.end_s - utterance.start_s
        if max_s is not None and length_s > max_s:
            data.n_long += 1
            continue
        if utterance.audio is None:
            data.segments[key] = times
        data.wav_scp[key if utterance.audio else utterance.session] = str(path)
        data.text[key], data.utt2spk[key] = utterance.text, utterance.speaker
    return data


def _find_problem(
    utterance: Transcript, path: Path, measured: float | AudioError
) -> DataProblem | None:
    """Return why an utterance's audio is unusable; None if it is usable."""
    key = utterance.utterance_id
    if isinstance(measured, AudioError):
        message = measured.message.removeprefix(f"{path}: ")
        return DataProblem(str(path), key, message, measured.remedy)
    if utterance.audio is None and utterance.end_s > measured + MAX_OVERSHOOT_S:
        message = f"ends at {utterance.end_s:g} s but its session at {measured:.2f} s"
        return DataProblem(str(path), key, message, "fetch annotation and audio again")
    return None


def measure_all(paths: set[Path], nj: int) -> dict[Path, float | AudioError]:
    """Return the duration of each audio file in seconds, or why it cannot be read."""

    def measure(path: Path) -> float | AudioError:
        try:
            return measure_audio(path)
        except AudioError as error:
            return error

    ordered = sorted(paths)
    with ThreadPoolExecutor(nj) as threads:
        results = tqdm(threads.map(measure, ordered), "read", len(ordered), unit=" files")
        return dict(zip(ordered, results, strict=True))


def unlabelled_set(options: Options) -> DataSet:
    """Segment the unlabelled sessions.

    Raises:
        InputError: There are no sessions, or no table for --segmentation official.
    """
    corpus = options.corpus
    sessions = find_sessions(corpus, options.lang, options.years)
    table, official, problems = corpus.segment_table(), {}, []
    if options.segmentation != "silence" and table is not None:
        read = read_segment_table(table, options.lang, sessions, options.years)
        official, problems = read.pieces, read.problems
    if options.segmentation == "official":
        if table is None:
            raise InputError(
                f"{corpus.root}: has no unlabelled_data/unlabelled_v2.tsv.gz; put it there, or"
                " give --segmentation silence"
            )
        sessions = {session: path for session, path in sessions.items() if session in official}
    check_above(options.max_segment_s, MIN_SEGMENT_S, "max_segment_s")
    cut = segment_sessions(sessions, options.lang, official, options.max_segment_s, options.nj)
    data = DataSet(problems=problems + cut.problems)
    for session, pieces in cut.pieces.items():
        data.wav_scp[session] = str(cut.audio[session])
        for piece in pieces:
            data.segments[piece.id] = f"{session} {piece.start_s:.3f} {piece.end_s:.3f}"
            data.utt2spk[piece.id] = f"{session}_{options.lang}"
    data.utt2session = data.segments
    return data


def write_data_dir(folder: Path, data: DataSet, language: str) -> None:
    """Write a data directory; wav.scp is last, so that an interrupted run leaves none."""
    for name in ("wav.scp", "segments", "text", BAD_UTTERANCES):
        (folder / name).unlink(missing_ok=True)
    for name, table in (("segments", data.segments), ("text", data.text)):
        if table:
            write_table(folder / name, table)
    if data.problems:
        write_table(folder / BAD_UTTERANCES, dict(map(table_line, data.problems)))
    write_table(folder / UTT2SESSION, data.utt2session)
    write_table(folder / "utt2spk", data.utt2spk)
    write_table(folder / "spk2utt", make_spk2utt(data.utt2spk))
    write_table(folder / "utt2lang", dict.fromkeys(data.utt2spk, language))
    write_table(folder / "wav.scp", data.wav_scp)


def fetch(options: Options) -> None:
    """Download the missing files of the setup.

    Raises:
        InputError, OSError: As `download` and `unpack`.
    """
    corpus, url = options.corpus, options.base_url
    fetch_annotation(corpus, options.lang, url)
    if not corpus.is_prepared(options.lang):
        splits = SPLITS if options.setup == "supervised" else ("test",)
        utterances = read_transcripts(corpus, options.lang, options.text).utterances.values()
        years = sorted({u.session[:4] for u in utterances if u.split in splits})
        fetch_audio(corpus, ORIGINAL, years, url)
    if options.setup == "self_supervised":
        fetch_audio(corpus, options.lang, options.years, url)
        if options.segmentation != "silence":
            fetch_segment_table(corpus, url)


def prepare(options: Options) -> int:
    """Prepare the sets of a setup and return the exit status.

    Raises:
        InputError, OSError: A table, all audio or all of a set is missing or cannot be downloaded.
    """
    if options.voxpopuli is None:
        fetch(options)
    elif not options.voxpopuli.is_dir():
        raise InputError(
            f"--voxpopuli {options.voxpopuli}: is no folder; give the one with raw_audios or"
            " transcribed_data, or omit the option to download the corpus"
        )
    read = read_transcripts(options.corpus, options.lang, options.text)
    bad_tests = [problem for problem in read.problems if problem.id in read.bad_tests]
    for problem in read.problems:
        if problem not in bad_tests:
            print(problem)
    if read.n_fallback:
        other = next(kind for kind in TEXT_COLUMNS if kind != options.text)
        print(
            f"{options.lang}: {read.n_fallback} utterances have {other} text only", file=sys.stderr
        )
    splits = SPLITS if options.setup == "supervised" else ("test",)
    is_complete = not read.problems and read.n_bad_tests == 0
    for split in splits:
        wanted = [u for u in read.utterances.values() if u.split == split]
        max_s = None if split == "test" else options.max_train_s
        data = transcribed_set(options.corpus, wanted, options.nj, max_s)
        if split == "test":
            data.problems = bad_tests + data.problems
            data.utt2session |= {key: f"{session} 0 -1" for key, session in read.bad_tests.items()}
        _finish(f"{split}_{options.lang}", data, options)
        is_complete = is_complete and not data.problems
    if options.setup == "self_supervised":
        data = unlabelled_set(options)
        _finish(f"unlabelled_{options.lang}", data, options)
        divide_unlabelled(options)
        is_complete = is_complete and not data.problems
    return 0 if is_complete else SOME_FAILED


def divide_unlabelled(options: Options) -> None:
    """Write the unlabelled audio as a training and a validation set, without the test set.

    Raises:
        InputError: All audio is of the test set, or there are too few sessions.
    """
    folder, lang = options.output_dir, options.lang
    source = folder / f"unlabelled_{lang}"
    division = divide(
        read_usable_places(source),
        read_places(folder / f"test_{lang}"),
        DivisionOptions(options.valid_fraction, options.margin_s),
    )
    write_subset(source, folder / f"train_{lang}_unlabelled", division.train, division.dropped)
    if division.valid:
        write_subset(source, folder / f"dev_{lang}_unlabelled", division.valid, {})
    print(
        f"{source.name}: {len(division.train)} to train on, {len(division.valid)} to validate on, "
        f"{len(division.dropped)} in the test set left out",
        file=sys.stderr,
    )


def _finish(name: str, data: DataSet, options: Options) -> None:
    """Print a set's problems, write it, and print its size."""
    for problem in data.problems:
        print(problem)
    if not data.utt2spk:
        raise InputError(
            f"{name}: none of its utterances can be used ({len(data.problems)} problems are named"
            " above); fetch annotation and audio again"
        )
    write_data_dir(options.output_dir / name, data, options.lang)
    line = f"{name}: {len(data.utt2spk)} utterances"
    line += f" of {len({data.utt2session[key].split()[0] for key in data.utt2spk})} sessions"
    line += f", {data.n_long} above {options.max_train_s:g} s left out" if data.n_long else ""
    line += f", {len(data.problems)} unusable" if data.problems else ""
    print(line, file=sys.stderr)


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--lang", choices=TRANSCRIBED_LANGUAGES, required=True)
    add("--setup", choices=SETUPS, default=Options.setup)
    add("--voxpopuli", type=Path, help="an existing copy; none: download")
    add("--download_dir", type=Path, default=Options.download_dir, help="folder of downloads")
    add("--text", choices=tuple(TEXT_COLUMNS), default=Options.text, help="kind of transcripts")
    add("--years", nargs="+", default=Options.years, help="years of the unlabelled sessions")
    add("--segmentation", choices=SEGMENTATIONS, default=Options.segmentation, help="how to cut")
    add("--max_segment_s", type=float, default=Options.max_segment_s, help="maximum segment")
    add("--max_train_s", type=float, default=Options.max_train_s, help="maximum in train and dev")
    add("--valid_fraction", type=float, default=Options.valid_fraction, help="share to validate on")
    add("--margin_s", type=float, default=Options.margin_s, help="margin around test utterances, s")
    add("--output_dir", type=Path, default=Options.output_dir, help="folder of data directories")
    add("--nj", type=positive, default=Options.nj, help="files that are read in parallel")
    add("--base_url", default=Options.base_url, help="address of the corpus")
    return parser


def main(cmd: list[str] | None = None) -> None:
    """Run the command."""
    arguments = vars(get_parser().parse_args(cmd))
    arguments["years"] = tuple(arguments["years"])
    run_main("prepare_voxpopuli", lambda: prepare(Options(**arguments)))


if __name__ == "__main__":
    main()
