"""Decode a job of many utterances: read its tables, resume, record results, write outputs."""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from espnet_medusa.data.audio.source import ark_address, open_source, source_columns, source_paths
from espnet_medusa.data.errors import InputError, list_some
from espnet_medusa.data.files.output_folder import file_digest, file_state
from espnet_medusa.data.kaldi.table import TableScan, join_words, scan_table
from espnet_medusa.data.progress import Progress
from espnet_medusa.inference.decoding import log_decoded
from espnet_medusa.inference.journal import Decoded, Failed, Journal, Outcome
from espnet_medusa.inference.longform.draft_text import DraftText

logger = logging.getLogger(__name__)

AUDIO_TYPES = ("sound", "kaldi_ark")
PREVIOUS = "text_prev"  # ESPnet's name of the text before an utterance


@dataclass(frozen=True)
class JobInput:
    keys: list[str]  # utterance ids, in order
    entries: Mapping[str, str]  # utterance id to the value in wav.scp
    problems: Mapping[str, str]  # utterance id to the error in its line
    # Utterance id to language code; other utterances have the language of the decode options.
    languages: Mapping[str, str] = field(default_factory=dict)
    previous_texts: Mapping[str, str] = field(default_factory=dict)  # for OWSM's prompts
    # Utterance id to a text that may be right. Exact results do not depend on it.
    draft_texts: Mapping[str, DraftText] = field(default_factory=dict)

    def source(self, key: str) -> str:
        """Return an utterance's values in the tables, and size and time of its audio files.

        If this has changed, an earlier result is not used. Paths are absolute and without links, as
        another call may spell them in another way.
        """
        tables = self.entries, self.languages, self.previous_texts
        parts = [table.get(key, "") for table in tables]
        columns, paths = source_columns(parts[0]), source_paths(parts[0])
        for number, path in enumerate(paths):
            address = ark_address(columns[number])
            columns[number] = os.path.realpath(path) + (f":{address[1]}" if address else "")
            with suppress(OSError):  # a missing file: reading it will fail
                parts.append(file_state(path))
        parts[0] = " ".join(columns)
        return "; ".join(filter(None, parts))

    def digest(self, key: str) -> str:
        """Return a digest of an utterance's encoded audio, language and previous text.

        Unlike ``source``, it does not depend on the file or archive of the audio. It is empty for
        a command and for unreadable audio.
        """
        entry = self.entries.get(key, "")
        if not source_paths(entry):
            return ""
        try:
            audio = [_audio_digest(column) for column in source_columns(entry)]
        except (InputError, OSError):
            return ""
        values = audio, self.languages.get(key), self.previous_texts.get(key)
        return sha256(repr(values).encode()).hexdigest()


def _audio_digest(entry: str) -> str:
    target = open_source(entry).target
    if isinstance(target, str):
        return file_digest(Path(target), "sha256")
    return sha256(target).hexdigest()


def read_input(
    data_path_and_name_and_type: Sequence[tuple[str, str, str]],
    key_file: str | None,
    utt2lang: str | None = None,
    previous_text: bool = False,
) -> JobInput:
    """Read wav.scp and the key file; raise InputError if a file or the option is not usable.

    Args:
        data_path_and_name_and_type: ESPnet's option; exactly one ``FILE,speech,TYPE`` and, with
            ``previous_text``, at most one ``FILE,text_prev,text``.
        key_file: File whose first column has the ids to decode; None: all ids of wav.scp.
        utt2lang: File with languages of utterances; None: all have that of the decode options.
    """
    by_name = {name: (path, kind) for path, name, kind in data_path_and_name_and_type}
    others = by_name.keys() - {"speech"} - ({PREVIOUS} if previous_text else set())
    if "speech" not in by_name or len(by_name) < len(data_path_and_name_and_type) or others:
        given = " ".join(",".join(entry) for entry in data_path_and_name_and_type)
        more = f" and one FILE,{PREVIOUS},text" if previous_text else ""
        allowed = f"one FILE,speech,TYPE{more}"
        raise InputError(f"data_path_and_name_and_type: {given!r}; allowed: {allowed}")
    path, kind = by_name["speech"]
    if kind not in AUDIO_TYPES:
        raise InputError(
            f"data_path_and_name_and_type: type {kind!r}; allowed: {', '.join(AUDIO_TYPES)}"
        )
    audio = scan_table(path)
    problems = _by_id(audio)
    keys = [*audio.entries]
    if key_file is not None:
        listed = scan_table(key_file, require_value=False)
        keys = [*listed.entries]
        missing = [key for key in keys if key not in audio.entries and key not in problems]
        # Each bad line of wav.scp is reported by the one job whose key file has its id.
        problems = {key: text for key, text in problems.items() if key in listed.entries}
        problems |= _by_id(listed)
        problems |= {key: f"{path}: has no such id; add its line" for key in missing}
    keys = [*dict.fromkeys([*keys, *problems])]
    languages = {} if utt2lang is None else _read_values(utt2lang, keys, problems)
    texts = _read_values(by_name[PREVIOUS][0], keys, problems) if PREVIOUS in by_name else {}
    texts = {key: join_words(text) for key, text in texts.items()}
    if PREVIOUS in by_name:
        lost = [key for key in keys if key not in texts and key not in problems]
        problems |= {key: f"{by_name[PREVIOUS][0]}: has no such id; add its line" for key in lost}
    return JobInput(keys, audio.entries, problems, languages, texts)


def _by_id(scan: TableScan) -> dict[str, str]:
    """Return the problem of each id; raise InputError for a problem of the whole file."""
    # A line without a readable id has its number as id, such as "line 3".
    problems = {one.id.replace(" ", "_"): str(replace(one, id="")) for one in scan.problems}
    if "" in problems:
        raise InputError(problems[""])
    return problems


def _read_values(path: str, keys: Sequence[str], problems: dict[str, str]) -> dict[str, str]:
    """Read values of utterances; add the problems in lines of ``keys`` to ``problems``."""
    scan = scan_table(path)
    found = _by_id(scan)
    problems |= {key: found[key] for key in keys if key in found}
    return scan.entries


class JobDecoder(Protocol):
    """Decodes the utterances of a job; ``UtteranceDecoder`` is one."""

    sample_rate_hz: int  # of the model

    def decode(self, job: JobInput) -> Iterator[Outcome]:
        """Yield the outcome of each utterance once, in any order."""


def resume(job: JobInput, journal: Journal) -> list[Decoded]:
    """Return the results of earlier runs whose input is unchanged; drop the others.

    Audio that is only in another place, such as an archive written again, is unchanged.
    """
    listed = [key for key in job.keys if key in journal.decoded]
    sources = {key: job.source(key) for key in listed}
    moved = [key for key in listed if journal.decoded[key].source != sources[key]]
    changed = [key for key in moved if journal.decoded[key].digest != (job.digest(key) or None)]
    for key in moved:
        journal.decoded[key] = replace(journal.decoded[key], source=sources[key])
    if changed:
        what = "audio, language or previous text"
        logger.info(f"{what} has changed, decoded again: {list_some(changed)}")
    if moved:
        journal.discard(changed)
    return [journal.decoded[key] for key in listed if key in journal.decoded]


def decode_remaining(decoder: JobDecoder, job: JobInput, journal: Journal) -> Iterator[Outcome]:
    """Decode the utterances that the journal lacks; yield each outcome after it is recorded."""
    remaining = [key for key in job.keys if key not in journal.decoded]
    sources = {key: job.source(key) for key in remaining}  # files may change from now on
    for outcome in decoder.decode(replace(job, keys=remaining)):
        if isinstance(outcome, Decoded):
            source = sources[outcome.key]
            digest = job.digest(outcome.key) if job.source(outcome.key) == source else ""
            outcome = replace(outcome, source=source, digest=digest)
            journal.add(outcome)
        else:
            journal.fail(outcome)
        yield outcome


def decode_job(
    decoder: JobDecoder, job: JobInput, journal: Journal, failed_as_empty: bool = False
) -> int:
    """Decode what the journal lacks, write ESPnet's files, and return the number of failures.

    ``failed_as_empty``: as in ``write_outputs``.
    """
    resumed = resume(job, journal)
    if resumed:
        logger.info(f"resumed: {len(resumed)} of {len(job.keys)} utterances were decoded before")
    for decoded in resumed:
        log_times(decoded, decoder.sample_rate_hz)
    with Progress(len(job.keys), len(resumed)) as progress:
        for outcome in decode_remaining(decoder, job, journal):
            if isinstance(outcome, Failed):
                logger.error(f"failed: {outcome.key}: {journal.failed[outcome.key]}")
            elif outcome.warning:
                logger.warning(f"{outcome.key}: {outcome.warning}")
            progress.update()
    journal.write_outputs(job.keys, job.entries, failed_as_empty)
    return len(journal.failed)


def log_times(decoded: Decoded, sample_rate_hz: int) -> None:
    """Log the two lines that ESPnet's calculate_rtf pairs, unless ``Speech2Text`` logged them.

    Used for utterances of an earlier run or of another process, and for long recordings.
    """
    seconds = decoded.statistics.total_seconds
    if seconds and decoded.nbest:
        samples = round(decoded.statistics.audio_seconds * sample_rate_hz)
        best = "".join(decoded.nbest[0].token)
        log_decoded(samples, best, time.time() - seconds, seconds)
