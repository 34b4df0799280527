"""Read the draft texts of recordings from earlier results of this and of other programs."""

from __future__ import annotations

import html
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet_medusa.data.errors import InputError, list_some
from espnet_medusa.data.kaldi.table import read_table
from espnet_medusa.inference.longform.draft_text import DraftText, TimedText
from espnet_medusa.inference.longform.segment import SEGMENTS

logger = logging.getLogger(__name__)

TEXT = "text"
TABLES = (TEXT, f"1best_recog/{TEXT}")  # in folders of this package and of ESPnet
JSON_SUFFIX, SUBTITLE_SUFFIXES, PLAIN_SUFFIX = ".json", (".srt", ".vtt"), ".txt"
SUFFIXES = (JSON_SUFFIX, *SUBTITLE_SUFFIXES, PLAIN_SUFFIX)  # those with times first
TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})[.,](\d{1,3})"
CUE = re.compile(rf"{TIME}\s*-->\s*{TIME}")
MARKUP = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
ALLOWED = f"a folder of results, a Kaldi table, or a file of one recording ({', '.join(SUFFIXES)})"


def read_draft_texts(
    source: str | Path, names: Mapping[str, Sequence[str]]
) -> dict[str, DraftText]:
    """Read the draft texts of recordings; those without one are not in the result.

    Args:
        source: A folder with a file per recording (json, srt, vtt, txt), with Kaldi's ``segments``
            and ``text`` in a folder ``segments``, or with a table ``text``; or one such file.
        names: Names of each recording in file names and tables, by key of the result.

    Raises:
        InputError: There is no text of any recording, or a file cannot be read.
    """
    source = Path(source).expanduser()
    if source.is_dir():
        found = _read_folder(source, names)
    elif source.suffix.lower() in SUFFIXES:
        keys = [key for key, some in names.items() if source.stem in some]
        keys = keys or ([*names] if len(names) == 1 else [])
        found = {key: read_transcript(source) for key in keys}
    else:
        found = _by_name(_read_table(source), names)
    missing = [some[0] for key, some in names.items() if key not in found]
    if names and not found:
        raise InputError(
            f"draft_text_from: {source}: has no text of {list_some(missing)}; allowed: {ALLOWED}"
        )
    if missing:
        logger.info(f"draft_text_from: {source}: has no text of {list_some(missing)}")
    return found


def _read_folder(folder: Path, names: Mapping[str, Sequence[str]]) -> dict[str, DraftText]:
    found: dict[str, DraftText] = {}
    for path in TABLES:
        if (folder / path).is_file():
            found = _by_name(_read_table(folder / path), names) | found
    if (folder / SEGMENTS / SEGMENTS).is_file():
        found |= _by_name(_read_segments(folder / SEGMENTS), names)
    for key, some in names.items():
        files = [folder / f"{name}{suffix}" for suffix in SUFFIXES for name in some]
        # A plain text has less than what was found already.
        files = [file for file in files if key not in found or file.suffix != PLAIN_SUFFIX]
        for file in [file for file in files if file.is_file()][:1]:
            found[key] = read_transcript(file)
    return found


def _by_name(
    texts: Mapping[str, DraftText], names: Mapping[str, Sequence[str]]
) -> dict[str, DraftText]:
    pairs = ((key, [name for name in some if name in texts]) for key, some in names.items())
    return {key: texts[present[0]] for key, present in pairs if present}


def _read_table(path: Path) -> dict[str, DraftText]:
    if not path.is_file():
        raise InputError(f"draft_text_from: {path}: does not exist; allowed: {ALLOWED}")
    return dict(read_table(path, require_value=False)) if path.stat().st_size else {}


def _read_segments(folder: Path) -> dict[str, list[TimedText]]:
    """Read the texts of a Kaldi data directory's segments, by recording."""
    texts, found = _read_table(folder / TEXT), {}
    for key, place in _read_table(folder / SEGMENTS).items():
        recording, *times = place.split()
        try:
            start_s, end_s = map(float, times)
        except ValueError:
            raise InputError(
                f"{folder / SEGMENTS}: {key}: {place}; allowed: a recording, start and end in s"
            ) from None
        if key in texts:
            found.setdefault(recording, []).append(TimedText(start_s, end_s, texts[key]))
    return {recording: sorted(segments) for recording, segments in found.items()}


def read_transcript(path: Path) -> DraftText:
    """Read the text of one recording; raise InputError if the file has none."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8: {error}") from None
    suffix = path.suffix.lower()
    if suffix == PLAIN_SUFFIX:
        return " ".join(content.split())
    return _read_json(path, content) if suffix == JSON_SUFFIX else _read_cues(path, content)


def _read_json(path: Path, content: str) -> DraftText:
    """Read the JSON of openai-whisper, faster-whisper and others: segments, or else a text."""
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON: {error}") from None
    segments = found.get("segments") if isinstance(found, dict) else found
    if isinstance(segments, list) and all(map(_is_segment, segments)):
        return [TimedText(one["start"], one["end"], one["text"]) for one in segments]
    if segments is None and isinstance(found.get("text"), str):
        return found["text"]
    raise InputError(
        f'{path}: allowed: an object with "segments" or "text", or a list of segments; a segment '
        'has "start" and "end" in s, and "text"'
    )


def _is_segment(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        return False
    times = value.get("start"), value.get("end")
    return all(type(time) in (int, float) and math.isfinite(time) for time in times)


def _read_cues(path: Path, content: str) -> list[TimedText]:
    """Read the cues of srt or vtt; those that repeat the text before only extend its time."""
    cues: list[TimedText] = []
    for block in re.split(r"\n\s*\n", content):
        lines = block.strip().splitlines()
        place = next((place for place, line in enumerate(lines) if CUE.search(line)), None)
        if place is None:
            continue
        numbers = CUE.search(lines[place]).groups()
        start_s, end_s = _seconds(numbers[:4]), _seconds(numbers[4:])
        text = html.unescape(MARKUP.sub("", " ".join(lines[place + 1 :])))
        text = " ".join(text.split())
        if cues and cues[-1].text == text:
            cues[-1] = cues[-1]._replace(end_s=end_s)
        elif text:
            cues.append(TimedText(start_s, end_s, text))
    if not cues and content.strip() not in ("", "WEBVTT"):
        raise InputError(f"{path}: has no cues; allowed: 00:00:01,000 --> 00:00:02,500 and a text")
    return cues


def _seconds(numbers: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = numbers
    whole_s = 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds)
    return whole_s + int(fraction) / 10 ** len(fraction)
