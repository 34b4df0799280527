"""Decode the utterances of one job; a bad one stops nobody else."""

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from espnet_medusa.decoding.journal import Decoded, Hypothesis, Journal
from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.audio import check_audio, read_audio
from espnet_medusa.kaldi.problem import DataProblem
from espnet_medusa.kaldi.table import scan_table
from espnet_medusa.log_mel import HOP_SAMPLES
from espnet_medusa.speech2text import Speech2Text

logger = logging.getLogger(__name__)

AUDIO_TYPES = ("sound", "kaldi_ark")


@dataclass(frozen=True)
class JobInput:
    """What a job decodes.

    Attributes:
        keys: Utterance ids, in order.
        entries: Utterance id to the value in wav.scp.
        problems: Utterance id to what is wrong with its line.
    """

    keys: list[str]
    entries: Mapping[str, str]
    problems: Mapping[str, str]


def read_input(
    data_path_and_name_and_type: Sequence[tuple[str, str, str]], key_file: str | None
) -> JobInput:
    """Read wav.scp and the key file.

    Args:
        data_path_and_name_and_type: ESPnet's option; exactly one ``FILE,speech,TYPE``.
        key_file: Ids to decode, first column; None takes all of wav.scp.

    Raises:
        InputError: A file is missing or empty, or the option names other data.
    """
    wanted = [entry for entry in data_path_and_name_and_type if entry[1] == "speech"]
    if len(wanted) != 1 or len(data_path_and_name_and_type) != 1:
        given = " ".join(",".join(entry) for entry in data_path_and_name_and_type)
        raise InputError(f"data_path_and_name_and_type: '{given}'; allowed: one FILE,speech,TYPE")
    path, _, kind = wanted[0]
    if kind not in AUDIO_TYPES:
        raise InputError(
            f"data_path_and_name_and_type: type '{kind}'; allowed: {', '.join(AUDIO_TYPES)}"
        )
    audio = scan_table(path)
    problems = _by_id(audio.problems)
    keys = [*audio.entries]
    if key_file is not None:
        listed = scan_table(key_file, require_value=False)
        keys = [*listed.entries]
        missing = [key for key in keys if key not in audio.entries and key not in problems]
        # Other jobs name the bad lines of wav.scp that they were given.
        problems = {key: text for key, text in problems.items() if key in ("", *keys)}
        problems |= _by_id(listed.problems)
        problems |= {key: f"{path}: {key}: missing; add its line" for key in missing}
    if "" in problems:
        raise InputError(problems[""])
    keys += [key for key in problems if key not in keys]
    return JobInput(keys, audio.entries, problems)


def _by_id(problems: Sequence[DataProblem]) -> dict[str, str]:
    # The id of an unreadable line is its number.
    return {problem.id.replace(" ", "_"): str(problem) for problem in problems}


def decode_job(
    speech2text: Speech2Text, job: JobInput, journal: Journal, allow_pipes: bool, preprocess=None
) -> int:
    """Decode what the journal does not hold yet, and write the outputs.

    Args:
        speech2text: Decodes.
        job: Ids and audio.
        journal: Gets results and failures.
        allow_pipes: Whether commands in wav.scp may run.
        preprocess: ESPnet's preprocessing function ``(id, data) -> data``, or None.

    Returns:
        Number of utterances without a result.
    """
    done = sum(key in journal.decoded for key in job.keys)
    if done:
        logger.info(f"resumed: {done} of {len(job.keys)} utterances were decoded before")
    for key in tqdm(job.keys, desc="decoding", unit="utt", mininterval=2.0):
        if key in journal.decoded:
            continue
        if key in job.problems:
            journal.fail(key, job.problems[key])
            continue
        try:
            journal.add(_decode(speech2text, key, job.entries[key], allow_pipes, preprocess))
        except Exception as error:  # whatever it was, the others go on
            if not isinstance(error, ValueError):
                logger.error(traceback.format_exc())
            journal.fail(key, f"{job.entries[key]}: {key}: {_one_line(error)}")
        if key in journal.failed:
            logger.error(f"failed: {journal.failed[key]}")
    journal.write_outputs(job.keys)
    return len(journal.failed)


def _decode(
    speech2text: Speech2Text, key: str, entry: str, allow_pipes: bool, preprocess
) -> Decoded:
    samples, rate_hz = read_audio(
        entry, allow_pipes=allow_pipes, max_duration_s=speech2text.window_s
    )
    check_audio(
        samples,
        rate_hz,
        expected_rate_hz=speech2text.sample_rate_hz,
        max_duration_s=speech2text.window_s,
        min_samples=HOP_SAMPLES,
    )
    data = {"speech": samples.astype(np.float32)}
    if preprocess is not None:
        data = preprocess(key, data)
    results = speech2text(data["speech"])
    nbest = [
        Hypothesis(text, list(token), list(token_int), str(hypothesis.score))
        for text, token, token_int, hypothesis in results
    ]
    if not nbest:
        raise InputError("no hypothesis ended; allow shorter ones with a smaller minlenratio")
    return Decoded(key, nbest, speech2text.statistics)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0] if lines else 'failed'}" + (
        "" if isinstance(error, ValueError) else f" ({type(error).__name__})"
    )
