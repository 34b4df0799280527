"""ESPnet's stage 3: from a Kaldi data directory to `dump/raw`, one rate, one channel."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.audio.source import is_pipe, source_paths
from espnet_medusa.files.output_folder import fingerprint, is_up_to_date, staged_output
from espnet_medusa.kaldi.audio_writer import AudioOptions, WrittenAudio, write_utterances
from espnet_medusa.kaldi.dump_dir import DumpTables
from espnet_medusa.kaldi.table import DataError, DataProblem, read_table, sort_ids, write_table
from espnet_medusa.kaldi.utterances import UtteranceSet, collect_utterances

BAD_UTTERANCES = "bad_utterances"
ON_BAD = ("stop", "skip")


@dataclass(frozen=True)
class FormatOptions:
    """What to do with a data directory.

    Attributes:
        audio: How audio is read and written.
        on_bad: "stop" writes nothing if an utterance is bad, for training sets; "skip" writes
            the others and lists the bad ones in `bad_utterances`, for test sets.
        require_text: Whether an utterance needs a line in text.
        allow_empty_text: Whether that line may hold the id alone.
    """

    audio: AudioOptions = field(default_factory=AudioOptions)
    on_bad: str = "stop"
    require_text: bool = True
    allow_empty_text: bool = False

    def __post_init__(self):
        if self.on_bad not in ON_BAD:
            raise ValueError(f"on_bad {self.on_bad} is unknown; allowed: {', '.join(ON_BAD)}")


@dataclass
class FormatReport:
    """What `format_data_dir` did.

    Attributes:
        n_written: Utterances in the output.
        bad: One problem for each utterance that is not in the output.
        was_complete: Whether the output was there already and nothing was done.
    """

    n_written: int
    bad: list[DataProblem]
    was_complete: bool = False


def format_data_dir(
    data_dir: str | Path, output_dir: str | Path, options: FormatOptions
) -> FormatReport:
    """Write wav.scp, text, utt2spk, spk2utt, utt2num_samples, `NOTES` and the audio they name.

    Args:
        data_dir: Kaldi data directory; segments are cut out, text and utt2spk are optional.
        output_dir: Written as a whole or not at all; not again if nothing has changed.
        options: What to do.

    Raises:
        DataError: A table is unusable; or an utterance is bad and `on_bad` is "stop"; or all
            utterances are bad. It lists every problem.
        ValueError: `output_dir` holds other files.
        OSError: The output cannot be written.
    """
    found = collect_utterances(data_dir, options.require_text, options.allow_empty_text)
    made_from = _fingerprint(found, output_dir, options)
    if is_up_to_date(output_dir, made_from):
        report = _complete_report(Path(data_dir), Path(output_dir))
        # Whether a failed command would fail again cannot be told from the outside.
        ran_commands = options.audio.allow_pipes and any(
            is_pipe(utterance.entry) for utterance in found.utterances
        )
        if not (report.bad and ran_commands):
            return report
    with staged_output(output_dir, made_from) as staging:
        if found.utterances:
            title = f"format {Path(data_dir).name}"
            written = write_utterances(found.utterances, staging, output_dir, options.audio, title)
        else:
            written = WrittenAudio()
        problems = found.problems + audio_problems(Path(data_dir), written)
        problems.sort(key=lambda problem: problem.id.encode("utf-8"))
        if problems and (options.on_bad == "stop" or not written.entries):
            raise DataError(problems)
        _write_tables(staging, found, written, options, problems)
    return FormatReport(len(written.entries), problems)


def audio_problems(data_dir: Path, written: WrittenAudio) -> list[DataProblem]:
    """Name the utterances whose audio could not be used."""
    return [
        DataProblem(str(data_dir / "wav.scp"), key, *written.bad[key])
        for key in sort_ids(written.bad)
    ]


def _fingerprint(found: UtteranceSet, output_dir: str | Path, options: FormatOptions) -> str:
    named = {"output_dir": str(output_dir), **dataclasses.asdict(options)}
    del named["audio"]["nj"]  # Another number of processes gives the same utterances.
    paths = [path for utterance in found.utterances for path in source_paths(utterance.entry)]
    return fingerprint(found.tables, paths, named)


def _write_tables(
    folder: Path,
    found: UtteranceSet,
    written: WrittenAudio,
    options: FormatOptions,
    problems: list[DataProblem],
) -> None:
    tables = DumpTables(
        wav_scp=written.entries,
        utt2spk=found.utt2spk,
        text=found.text,
        utt2num_samples=written.n_samples,
        audio_format=options.audio.audio_format,
        notes=found.notes,
    )
    tables.select(set(written.entries)).write(folder)
    if problems:
        write_table(folder / BAD_UTTERANCES, dict(map(_listed, problems)))


def _listed(problem: DataProblem) -> tuple[str, str]:
    """Turn a problem into id and reason; a line whose id cannot be decoded is `line_7`."""
    reason = f"{Path(problem.file).name}: {problem.message}; {problem.remedy}"
    return "_".join(problem.id.split()), " ".join(reason.split())


def _complete_report(data_dir: Path, output_dir: Path) -> FormatReport:
    """Say of a complete output what was said when it was made."""
    n_written = len(read_table(output_dir / "wav.scp"))
    if not (output_dir / BAD_UTTERANCES).exists():
        return FormatReport(n_written, [], was_complete=True)
    problems = []
    for key, reason in read_table(output_dir / BAD_UTTERANCES).items():
        file, _, rest = reason.partition(": ")
        message, _, remedy = rest.rpartition("; ")
        problems.append(DataProblem(str(data_dir / file), key, message, remedy))
    return FormatReport(n_written, problems, was_complete=True)
