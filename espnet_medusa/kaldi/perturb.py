"""ESPnet's stage 2: copies of a training set that are spoken faster and slower.

Speed changes tempo and pitch together, as Kaldi's does, but through resampling, not sox pipes.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.audio.source import source_paths
from espnet_medusa.files.output_folder import fingerprint, is_up_to_date, staged_output
from espnet_medusa.kaldi.audio_writer import AudioOptions, WrittenAudio, write_utterances
from espnet_medusa.kaldi.dump_dir import DumpTables
from espnet_medusa.kaldi.table import DataError, DataProblem
from espnet_medusa.kaldi.utterances import UtteranceSet, collect_utterances

MIN_FACTOR, MAX_FACTOR = 0.5, 2.0


def parse_factors(text: str) -> list[float]:
    """Read factors such as "0.9 1.0 1.1".

    Raises:
        ValueError: One is no number, out of range or given twice.
    """
    try:
        factors = [float(word) for word in text.split()]
    except ValueError:
        raise ValueError(f'factors must be numbers such as "0.9 1.0 1.1", not {text!r}') from None
    if not factors or len(set(factors)) < len(factors):
        raise ValueError(f'factors must differ, such as "0.9 1.0 1.1", not {text!r}')
    for factor in factors:
        if not MIN_FACTOR <= factor <= MAX_FACTOR:
            raise ValueError(
                f"factor {factor:g} is out of range; allowed: {MIN_FACTOR} to {MAX_FACTOR}"
            )
    return factors


def perturbed_id(name: str, factor: float) -> str:
    """Prefix an utterance or speaker as Kaldi does; the original speed has no prefix."""
    return name if factor == 1 else f"sp{factor}-{name}"


def perturb_speed(
    data_dir: str | Path,
    output_dir: str | Path,
    factors: Sequence[float],
    nj: int = 1,
    allow_pipes: bool = False,
    allow_empty_text: bool = True,
) -> int:
    """Write a data directory that holds every utterance once for each factor.

    Each file keeps its own sample rate. Files of speed 1 are named, not copied; segments are cut
    out, so the output has none.

    Args:
        data_dir: Kaldi data directory with transcripts.
        output_dir: Written as a whole or not at all; not again if nothing has changed.
        factors: Speeds; 1.1 is faster and shorter.
        nj: Processes.
        allow_pipes: Whether commands in wav.scp may run.
        allow_empty_text: Whether a transcript may be empty (ESPnet's stage 4 drops it later).

    Returns:
        Number of utterances in the output.

    Raises:
        DataError: An utterance is bad; lists all of them, each once.
        ValueError: `output_dir` holds other files.
    """
    found = collect_utterances(data_dir, allow_empty_text=allow_empty_text)
    options = AudioOptions(fs=None, nj=nj, allow_pipes=allow_pipes)
    named = {"output_dir": str(output_dir), "factors": list(factors), "pipes": allow_pipes}
    paths = [path for utterance in found.utterances for path in source_paths(utterance.entry)]
    made_from = fingerprint(found.tables, paths, named)
    n_output = len(found.utterances) * len(factors)
    if is_up_to_date(output_dir, made_from):
        return n_output
    with staged_output(output_dir, made_from) as staging:
        referenced, to_write = {}, []
        for factor in factors:
            for utterance in found.utterances:
                key = perturbed_id(utterance.id, factor)
                changed = dataclasses.replace(utterance, id=key, speed=factor)
                if changed.is_whole_file:
                    referenced[key] = utterance.entry
                else:
                    to_write.append(changed)
        written = WrittenAudio()
        if to_write:
            title = f"perturb {Path(data_dir).name}"
            written = write_utterances(to_write, staging, output_dir, options, title)
        problems = found.problems + _audio_problems(Path(data_dir), found, factors, written)
        if problems:
            raise DataError(problems)
        _tables(found, factors, {**referenced, **written.entries}).write(staging)
    return n_output


def _audio_problems(
    data_dir: Path, found: UtteranceSet, factors: Sequence[float], written: WrittenAudio
) -> list[DataProblem]:
    """Name a bad utterance once, not once for each factor."""
    problems = []
    for utterance in found.utterances:
        for factor in factors:
            bad = written.bad.get(perturbed_id(utterance.id, factor))
            if bad:
                problems.append(DataProblem(str(data_dir / "wav.scp"), utterance.id, *bad))
                break
    return problems


def _tables(found: UtteranceSet, factors: Sequence[float], entries: dict[str, str]) -> DumpTables:
    text, utt2spk = {}, {}
    notes: dict[str, dict[str, str]] = {name: {} for name in found.notes}
    for factor in factors:
        for utterance in found.utterances:
            key = perturbed_id(utterance.id, factor)
            text[key] = found.text[utterance.id]
            utt2spk[key] = perturbed_id(found.utt2spk[utterance.id], factor)
            for name, table in found.notes.items():
                if utterance.id in table:
                    notes[name][key] = table[utterance.id]
    return DumpTables(wav_scp=entries, utt2spk=utt2spk, text=text, utt2num_samples={}, notes=notes)
