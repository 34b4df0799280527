"""ESPnet's stage 3: convert a Kaldi data directory to `dump/raw` with one rate and one channel."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.data.audio.source import is_pipe
from espnet_medusa.data.files.output_folder import (
    check_output_dir,
    digest_of_inputs,
    is_up_to_date,
    staged_output,
)
from espnet_medusa.data.kaldi.data_dir import ALLOW_EMPTY, SCORED
from espnet_medusa.data.kaldi.dump_dir import select_ids, write_dump_dir
from espnet_medusa.data.kaldi.table import DataError, DataProblem, read_table, write_table
from espnet_medusa.data.kaldi.utterances import collect_utterances
from espnet_medusa.data.options import option
from espnet_medusa.recipes.kaldi.audio_writer import AudioOptions, write_utterances

BAD_UTTERANCES = "bad_utterances"
ON_BAD = ("stop", "skip")


@dataclass(frozen=True)
class FormatOptions:
    audio: AudioOptions = field(default_factory=AudioOptions)
    on_bad: str = option(
        "stop", "stop: write nothing if an utterance is bad (training sets); "
        f"skip: write the others, list the bad ones in {BAD_UTTERANCES} (test sets)",
    )  # fmt: skip
    require_text: bool = option(True, "whether every utterance needs a transcript")
    allow_empty_text: bool = option(False, ALLOW_EMPTY)
    scored: bool = option(True, SCORED)


@dataclass
class FormatReport:
    n_written: int  # utterances in the output
    bad: list[DataProblem]  # one problem for each utterance that is not in the output
    was_complete: bool = False  # whether the output existed already and nothing was done


def format_data_dir(
    data_dir: str | Path, output_dir: str | Path, options: FormatOptions
) -> FormatReport:
    """Write wav.scp, text, utt2spk, spk2utt, utt2num_samples, `EXTRA_TABLES` and the audio.

    Args:
        data_dir: Kaldi data directory; segments are cut out, text and utt2spk are optional.
        output_dir: Written completely or not at all, and only if an input has changed.

    Raises:
        DataError: A table is unusable, or all utterances are bad, or with `on_bad: stop` one is.
            It lists every problem.
        ValueError: `output_dir` has files but no stamp (``staged_output``), or contains an input.
    """
    texts = options.require_text, options.allow_empty_text
    data = collect_utterances(data_dir, *texts, options.scored)
    check_output_dir(output_dir, [data_dir, *data.audio_files])
    inputs = {"output_dir": str(output_dir), **dataclasses.asdict(options)}
    del inputs["audio"]["nj"]  # The number of processes does not change the utterances.
    made_from = digest_of_inputs(data.files, data.audio_files, inputs)
    if is_up_to_date(output_dir, made_from):
        report = _complete_report(Path(data_dir), Path(output_dir))
        # A command that failed may succeed now.
        has_commands = any(is_pipe(utterance.entry) for utterance in data.utterances)
        if not (report.bad and has_commands and options.audio.allow_pipes):
            return report
    with staged_output(output_dir, made_from) as staging:
        title = f"format {Path(data_dir).name}"
        written = write_utterances(data.utterances, staging, output_dir, options.audio, title)
        wav_scp = str(Path(data_dir) / "wav.scp")
        problems = [DataProblem(wav_scp, key, *reason) for key, reason in written.bad.items()]
        problems = sorted(data.problems + problems, key=lambda problem: problem.id.encode("utf-8"))
        if problems and (options.on_bad == "stop" or not written.entries):
            raise DataError(problems)
        tables = {**data.tables, "wav.scp": written.entries, "utt2num_samples": written.lengths}
        tables = select_ids(tables, written.entries)
        write_dump_dir(staging, tables, options.audio.audio_format)
        if problems:
            write_table(staging / BAD_UTTERANCES, dict(map(table_line, problems)))
    return FormatReport(len(written.entries), problems)


def table_line(problem: DataProblem) -> tuple[str, str]:
    """Turn a problem into id and reason; a line whose id cannot be decoded is `line_7`."""
    reason = f"{Path(problem.file).name}: {problem.message}; {problem.remedy}"
    return "_".join(problem.id.split()), " ".join(reason.split())


def _complete_report(data_dir: Path, output_dir: Path) -> FormatReport:
    """Rebuild the report of a complete output from its files."""
    report = FormatReport(len(read_table(output_dir / "wav.scp")), [], was_complete=True)
    if (output_dir / BAD_UTTERANCES).exists():
        for key, reason in read_table(output_dir / BAD_UTTERANCES).items():
            file, _, rest = reason.partition(": ")
            message, _, remedy = rest.rpartition("; ")
            report.bad.append(DataProblem(str(data_dir / file), key, message, remedy))
    return report
