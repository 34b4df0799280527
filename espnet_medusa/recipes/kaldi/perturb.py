"""ESPnet's stage 2: copies of a training set at other speeds.

Speed changes tempo and pitch together, as in Kaldi, but by resampling instead of sox pipes.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.output_folder import (
    check_output_dir,
    digest_of_inputs,
    is_up_to_date,
    staged_output,
)
from espnet_medusa.data.kaldi.dump_dir import write_dump_dir
from espnet_medusa.data.kaldi.table import DataError, DataProblem, sort_ids
from espnet_medusa.data.kaldi.utterances import collect_utterances
from espnet_medusa.recipes.kaldi.audio_writer import AudioOptions, write_utterances

MIN_FACTOR, MAX_FACTOR = 0.5, 2.0


def parse_factors(text: str) -> list[float]:
    """Parse distinct factors such as "0.9 1.0 1.1"; raise ValueError for other text."""
    try:
        factors = [float(word) for word in text.split()]
    except ValueError:
        factors = []
    if not factors or len(set(factors)) < len(factors):
        raise ValueError(f'factors must be distinct numbers such as "0.9 1.0 1.1", not {text!r}')
    for factor in factors:
        if not MIN_FACTOR <= factor <= MAX_FACTOR:
            raise ValueError(f"factor {factor:g}: allowed: {MIN_FACTOR} to {MAX_FACTOR}")
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
) -> int:
    """Write a data directory with a copy of every utterance for each factor; return their number.

    Each file keeps its sample rate. With factor 1 and no segments, entries are unchanged. Segments
    are cut out, so the output has no segments. It is written completely or not at all, and only if
    an input has changed. Raise DataError with all bad utterances, each once, and ValueError if
    `output_dir` has files but no stamp (``staged_output``), or contains an input.
    """
    data = collect_utterances(data_dir, allow_empty_text=True)  # stage 4 drops these utterances
    check_output_dir(output_dir, [data_dir, *data.audio_files])
    copies = {
        perturbed_id(utterance.id, factor): dataclasses.replace(utterance, speed=factor)
        for factor in factors
        for utterance in data.utterances
    }
    if len(copies) < len(factors) * len(data.utterances):
        raise InputError(f"{data_dir}: two copies would have one id; was its speed changed before?")
    inputs = {"output_dir": str(output_dir), "factors": list(factors), "pipes": allow_pipes}
    made_from = digest_of_inputs(data.files, data.audio_files, inputs)
    if is_up_to_date(output_dir, made_from):
        return len(copies)
    with staged_output(output_dir, made_from) as staging:
        changed = {key: one for key, one in copies.items() if not one.is_whole_file}
        to_write = [dataclasses.replace(one, id=key) for key, one in changed.items()]
        audio = AudioOptions(fs=None, nj=nj, allow_pipes=allow_pipes)
        title = f"perturb {Path(data_dir).name}"
        written = write_utterances(to_write, staging, output_dir, audio, title)
        bad = {copies[key].id: reason for key, reason in written.bad.items()}
        wav_scp = str(Path(data_dir) / "wav.scp")
        problems = data.problems + [DataProblem(wav_scp, key, *bad[key]) for key in sort_ids(bad)]
        if problems:
            raise DataError(problems)
        unchanged = {key: one.entry for key, one in copies.items() if one.is_whole_file}
        tables = {
            name: {key: table[one.id] for key, one in copies.items() if one.id in table}
            for name, table in data.tables.items()
        }
        for key, speaker in tables["utt2spk"].items():
            tables["utt2spk"][key] = perturbed_id(speaker, copies[key].speed)
        write_dump_dir(staging, {"wav.scp": unchanged | written.entries, **tables})
    return len(copies)
