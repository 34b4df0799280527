"""The content of a page: the traces, words, figures and audio of utterances.

The format of traces: docs/see_a_decoding.md.
"""

from __future__ import annotations

import base64
import io
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from espnet_medusa.data.audio.reader import read_audio
from espnet_medusa.data.audio.reading import TRANSCRIBING, AudioReading
from espnet_medusa.data.audio.source import open_file
from espnet_medusa.decoding.search.search_options import HEADS, MODEL
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.inference.longform.window import FRAMES_PER_S
from espnet_medusa.transcription.page.page import write_page

logger = logging.getLogger(__name__)

PLAYABLE = frozenset([".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".webm", ".aac"])
TIMED = frozenset([".m4a", ".webm"])  # they may have gaps and several tracks
PEAKS_PER_S, MOST_PEAKS, LOUDEST = 20, 8000, 255
MILLI = 1000.0
THRESHOLDS = {  # decode options by the keys of an attempt
    "compression_ratio": "compression_ratio_threshold",
    "average_log_probability": "logprob_threshold",
    "no_speech_probability": "no_speech_threshold",
}

Trace = Sequence[Mapping[str, Any]]  # passages, as ``Decoding.trace``


@dataclass(frozen=True)
class Shown:
    """An utterance on a page."""

    id: str
    text: str
    statistics: DecodingStatistics
    trace: Trace | None = None
    baseline: Shown | None = None  # decoded without drafts
    segments: Sequence[Segment] = ()  # with word times, or without
    # A value in wav.scp, or the path of a file; None: the page has no audio.
    entry: str | Path | None = None
    # Letter (C, S, D, I), reference word and hypothesis word of each aligned position.
    alignment: Sequence[tuple[str, str | None, str | None]] | None = None
    error: str | None = None  # why the utterance has no text


def show(
    path: Path,
    title: str,
    utterances: Sequence[Shown],
    options: Mapping[str, Any],
    embed_audio: bool = False,
    reading: AudioReading = TRANSCRIBING,
) -> None:
    """Write the page of a recording or a test set.

    Args:
        options: Decode options: search and drafter, and the thresholds of ``LongFormOptions``.
        embed_audio: Whether the page contains the audio; else it refers to the files.
        reading: How the audio was read for decoding.
    """
    statistics = [one.statistics for one in utterances]
    by_model = any(one.draft_calls for one in statistics)
    drafter = options.get("drafter") or (MODEL if by_model else HEADS)
    head = {
        "version": 1,
        "title": title,
        "drafter": drafter if any(one.drafted for one in statistics) else None,
        "search": "greedy" if options.get("search") == "greedy" else "beam",
        "thresholds": {name: options.get(option) for name, option in THRESHOLDS.items()},
        "utterances": [*map(overview, utterances)],
    }
    how = path.parent, embed_audio, reading
    write_page(path, head, (details(shown, *how) for shown in utterances))


def overview(shown: Shown) -> dict[str, Any]:
    """Return the row of an utterance in the page's overview."""
    wer = None
    if shown.alignment is not None:
        letters = [letter for letter, _, _ in shown.alignment]
        words = sum(letter != "I" for letter in letters)
        wer = {"errors": sum(letter != "C" for letter in letters), "words": words}
    return {
        "id": shown.id,
        "seconds": round(shown.statistics.audio_seconds, 2),
        "text": shown.text,
        "error": shown.error,
        "summary": summary(shown.statistics),
        "baseline": shown.baseline and summary(shown.baseline.statistics),
        "wer": wer,
    }


def summary(statistics: DecodingStatistics) -> dict[str, Any]:
    """Return counts, acceptance by step and milliseconds."""
    figures = statistics.summary()
    total, search = statistics.total_seconds, statistics.decoder_seconds
    drafting = statistics.draft_seconds
    parts = {
        "encoder_ms": max(total - search, 0.0),
        "drafting_ms": drafting,
        "verification_ms": search - drafting,
        "total_ms": total,
    }
    return {
        "words": statistics.words,
        "tokens": statistics.tokens,
        "calls": statistics.decoder_calls,
        "tokens_per_call": round(figures["tokens_per_call"], 3),
        "acceptance": [round(share, 3) for share in figures["acceptance_per_head"]],
        **{name: round(MILLI * seconds, 3) for name, seconds in parts.items()},
    }


def details(
    shown: Shown, folder: Path, embed_audio: bool, reading: AudioReading = TRANSCRIBING
) -> dict[str, Any]:
    """Return the utterance's block of a page in ``folder``."""
    alignment = None
    if shown.alignment is not None:
        alignment = [
            {"op": letter.replace("C", "="), "reference": reference, "hypothesis": hypothesis}
            for letter, reference, hypothesis in shown.alignment
        ]
    traced = shown.baseline and shown.baseline.trace
    baselines = {passage["start_s"]: passage for passage in traced or ()}
    return {
        "audio": None if shown.entry is None else audio(shown.entry, folder, embed_audio, reading),
        "alignment": alignment,
        "passages": [
            _passage(passage, shown, baselines.get(passage["start_s"]))
            for passage in shown.trace or ()
        ],
    }


def _passage(
    passage: Mapping[str, Any], shown: Shown, baseline: Mapping[str, Any] | None
) -> dict[str, Any]:
    start_s, end_s = passage["start_s"], passage["end_s"]
    words = [
        {"text": word.text, "start_s": word.start_s, "end_s": word.end_s}
        for segment in shown.segments
        if abs(segment.seek / FRAMES_PER_S - start_s) < 1 / FRAMES_PER_S
        for word in segment.words
    ]
    return {
        "start_s": start_s,
        "end_s": shown.statistics.audio_seconds if end_s is None else end_s,
        "words": words,
        "attempts": [decoding(attempt) for attempt in passage["attempts"]],
        "baseline": baseline and decoding(next(a for a in baseline["attempts"] if a["chosen"])),
    }


def decoding(attempt: Mapping[str, Any]) -> dict[str, Any]:
    """Return an attempt of a trace with texts in the place of token ids."""
    texts = {int(token): text for token, text in attempt["texts"].items()}

    def row(node: Sequence[Any]) -> list[Any]:
        parent, token, step, score, kept, following = node
        after = [[texts[token], round(value, 4)] for token, value in following]
        return [parent, texts[token], step, score and round(score, 4), kept, after]

    calls = [
        {name: round(call[name], 3) for name in ("drafting_ms", "verification_ms")}
        | {"steps": call["steps"], "nodes": [row(node) for node in call["nodes"]]}
        for call in attempt["calls"]
    ]
    tokens = [
        {name: token[name] for name in ("text", "call", "by", "step")}
        | ({"special": True} if token["special"] else {})
        for token in attempt["tokens"]
    ]
    others = {name: value for name, value in attempt.items() if name != "texts"}
    return {**others, "start_ms": round(attempt["start_ms"], 3), "tokens": tokens, "calls": calls}


def audio(
    entry: str | Path, folder: Path, embed: bool, reading: AudioReading = TRANSCRIBING
) -> dict[str, Any] | None:
    """Return source and waveform of ``Shown.entry``, or None if a browser could not play it.

    Or if the browser would play other times or another track than those that were decoded.
    """
    try:
        opened = open_file(str(entry)) if isinstance(entry, Path) else entry
        samples, rate_hz = read_audio(opened, reading=reading)
    except (ValueError, OSError) as error:
        logger.warning(f"{entry}: the page has no audio: {error}")
        return None
    if embed:
        stream = io.BytesIO()
        soundfile.write(stream, samples, rate_hz, format="FLAC", subtype="PCM_16")
        source = "data:audio/flac;base64," + base64.b64encode(stream.getvalue()).decode()
    elif Path(entry).is_file() and Path(entry).suffix.lower() in _playable(reading):
        source = Path(os.path.relpath(Path(entry).resolve(), folder.resolve())).as_posix()
    else:
        reason = "not a file that browsers play as it was decoded"
        logger.warning(f"{entry}: {reason}; --embed_audio true includes it")
        return None
    return {"src": source, "peaks": peaks(samples, rate_hz)}


def _playable(reading: AudioReading) -> frozenset[str]:
    by_player = reading.player_times and reading.audio_track is None
    return PLAYABLE if by_player else PLAYABLE - TIMED


def peaks(samples: np.ndarray, rate_hz: int) -> list[int]:
    """Return the largest amplitudes of evenly spaced parts, as whole numbers up to 255."""
    count = int(np.clip(len(samples) / rate_hz * PEAKS_PER_S, 1, MOST_PEAKS))
    parts = np.array_split(np.abs(samples), count)
    largest = np.array([part.max() if len(part) else 0.0 for part in parts])
    return np.round(LOUDEST * largest / max(largest.max(), 1e-9)).astype(int).tolist()
