"""Table and plot of ``long_audio.py``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import median

from inputs import Utterance
from peers.contestant import FLOAT32
from peers.transcriber import FASTER_WHISPER, OPENAI_WHISPER, LongTranscribed, Piece
from peers.way import PLAIN, Way
from real_whisper_report import by_search
from real_whisper_report import label as short_label
from stacked_bars import plot_encoder_and_decoder
from table_cells import cells
from word_errors import WHISPER_CLEANER, word_errors

from espnet_medusa.errors import InputError
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.scoring.sclite import Counts

Found = Mapping[Way, Mapping[str, LongTranscribed]]

PEER = (FASTER_WHISPER, "int8")  # whose time the others are compared with
HOUR_S = 3600.0
SAME_S = 0.005  # times are written in hundredths
TIMES = {  # title: figure and how it is written
    "encoder and features [s]": ("encoder_s", "{:.1f}"),
    "decoder [s]": ("decoder_s", "{:.1f}"),
    "all [s]": ("seconds", "{:.1f}"),
    "times faster-whisper int8's speed": ("speed", "{:.2f}"),
}
COUNTS = {
    "calls": ("calls", "{}"),
    "tokens a call": ("tokens_per_call", "{:.2f}"),
    "WER [%]": ("wer", "{:.2f}"),
    "segments": ("segments", "{}"),
    "of them above temperature 0": ("drawn", "{}"),
    "recordings as openai-whisper's": ("as_openai", "{}"),
    "of its segments": ("segments_as_openai", "{}"),
    "word times differ by [s] (median)": ("word_times_differ_s", "{:.3f}"),
    "recordings as without drafts": ("as_plain", "{}"),
}
NOTES = """\
- {attempts}, otherwise each program's own defaults; ours ends and ranks a beam as
  openai-whisper. *In batches*: so many chunks together, which voice activity finds, a segment each.
- *As openai-whisper's*: all segments have its start, end and text (same search, float32).
- WER after Whisper's normalizer ({cleaner}), whole recordings.
- {versions}.
"""
ATTEMPTS = {
    False: "At temperature 0",
    True: "Windows that fail are decoded again, up to temperature 1, where each draws for itself",
}
TIMED = """\
- Recording after recording in turns, {threads} threads, seconds of an hour of audio, samples to
  segments. *Times faster-whisper int8's speed*: beside its windows one after the other.
"""


def make_report(
    name: str,
    utterances: Sequence[Utterance],
    found: Found,
    left_out: Mapping[str, str],
    machine: dict,
    timed: bool,
    fallback: bool = False,
) -> dict:
    """All figures, of the recordings that all ways have.

    Args:
        name: Of the model.
        utterances: Recordings with references.
        found: What everybody wrote, by way and recording.
        left_out: Why somebody is not there.
        machine: As ``describe_machine`` says.
        timed: Whether seconds count.
        fallback: Whether windows that fail were decoded again.

    Raises:
        InputError: There is no such recording.
    """
    kept = [one for one in utterances if all(one.id in texts for texts in found.values())]
    if not kept:
        raise InputError("no recording was transcribed by all; leave out who is missing")
    seconds = sum(one.seconds for one in kept)
    return {
        "model": name,
        "recordings": len(kept),
        "audio_seconds": seconds,
        "timed": timed,
        "fallback": fallback,
        "machine": machine,
        "left_out": dict(left_out),
        "transcribers": [
            {"label": label(way), "search": way.search} | figures(way, found, kept, seconds)
            for way in found
        ],
        "differences": [
            {"label": label(way), "search": way.search, "recording": one.id} | difference
            for way in found
            if (reference := _reference(way, found)) is not None
            for one in kept
            for difference in first_difference(reference[one.id], found[way][one.id])
        ],
    }


def label(way: Way) -> str:
    """Who, with which weights, windows and drafts."""
    return short_label(way) + (f", in batches of {way.batch_size}" if way.batch_size > 1 else "")


def _reference(way: Way, found: Found) -> Mapping[str, LongTranscribed] | None:
    """openai-whisper's, for what may write the same."""
    theirs = Way(OPENAI_WHISPER, FLOAT32, way.search)
    alike = way.weights == FLOAT32 and way.batch_size == 1 and way != theirs
    return found.get(theirs) if alike else None


def figures(way: Way, found: Found, kept: Sequence[Utterance], audio_seconds: float) -> dict:
    """Of one way."""
    ours = [found[way][one.id] for one in kept]
    errors = sum(word_errors([one.text for one in kept], [one.text for one in ours]), Counts())
    hours = audio_seconds / HOUR_S
    row = {
        "encoder_s": sum(one.encoder_seconds for one in ours) / hours,
        "decoder_s": sum(one.decoder_seconds for one in ours) / hours,
        "seconds": sum(one.seconds for one in ours) / hours,
        "wer": errors.error_percent,
        "segments": sum(len(one.pieces) for one in ours),
    }
    drawn = sum(piece.temperature > 0 for one in ours for piece in one.pieces)
    if drawn:
        row["drawn"] = drawn
    peer = found.get(Way(*PEER, way.search))
    if peer is not None:
        row["speed"] = sum(peer[one.id].seconds for one in kept) / hours / row["seconds"]
    if all(one.calls is not None for one in ours):
        row["calls"] = sum(one.calls for one in ours)
        row["tokens_per_call"] = sum(one.tokens for one in ours) / max(row["calls"], 1)
    reference = _reference(way, found)
    if reference is not None:
        theirs = [reference[one.id] for one in kept]
        pairs = [*zip(theirs, ours, strict=True)]
        row["as_openai"] = f"{sum(same(*pair) for pair in pairs)}/{len(pairs)}"
        segments = sum(len(one.pieces) for one in theirs)
        row["segments_as_openai"] = f"{sum(map(same_segments, theirs, ours))}/{segments}"
        if (apart := word_times_apart(theirs, ours)) is not None:
            row["word_times_differ_s"] = apart
    plain = found.get(Way(way.contestant, way.weights, way.search, way.batch_size))
    if way.drafts != PLAIN and plain is not None:
        alike = sum(same(plain[one.id], found[way][one.id]) for one in kept)
        row["as_plain"] = f"{alike}/{len(kept)}"
    return row


def same_piece(one: Piece | None, other: Piece | None) -> bool:
    """Whether start, end and text are the same."""
    if one is None or other is None:
        return False
    times = abs(one.start_s - other.start_s), abs(one.end_s - other.end_s)
    return one.text.strip() == other.text.strip() and max(times) < SAME_S


def same(one: LongTranscribed, other: LongTranscribed) -> bool:
    """Whether all segments are."""
    return next(first_difference(one, other), None) is None


def same_segments(one: LongTranscribed, other: LongTranscribed) -> int:
    """How many segments of one are in the other, times included."""
    theirs = {(round(two.start_s, 2), round(two.end_s, 2), two.text.strip())
              for two in other.pieces}  # fmt: skip
    return sum(
        (round(two.start_s, 2), round(two.end_s, 2), two.text.strip()) in theirs
        for two in one.pieces
    )


def first_difference(one: LongTranscribed, other: LongTranscribed) -> Iterator[dict]:
    """The first segment that differs, and how probable each found its window; nothing: none."""
    for number, (theirs, ours) in enumerate(zip_longest(one.pieces, other.pieces)):
        if not same_piece(theirs, ours):
            yield {
                "segment": number,
                "start_s": (theirs or ours).start_s,
                "texts": [piece.text if piece else "" for piece in (theirs, ours)],
                "average_log_probabilities": [
                    piece.average_log_probability if piece else None for piece in (theirs, ours)
                ],
            }
            return


def word_times_apart(
    theirs: Sequence[LongTranscribed], ours: Sequence[LongTranscribed]
) -> float | None:
    """Median distance of starts and ends of words in segments whose words are the same."""
    apart = [
        abs(one_s - other_s)
        for one, other in zip(theirs, ours, strict=True)
        for left, right in zip(one.pieces, other.pieces, strict=False)
        if left.words and [word[0] for word in left.words] == [word[0] for word in right.words]
        for first, second in zip(left.words, right.words, strict=True)
        for one_s, other_s in zip(first[1:], second[1:], strict=True)
    ]
    return median(apart) if apart else None


def write_report(report: dict, output: Path) -> None:
    """Write Markdown, the figures as JSON and, where seconds count, the plot."""
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    output.with_suffix(".json").write_text(text, encoding="utf-8")
    image = None
    if report["timed"]:
        image = output.with_suffix(".png")
        figures = ("encoder_s", "decoder_s")
        plot_encoder_and_decoder(
            report["model"], by_search(report), figures, "s for an hour of audio", image
        )
    output.write_text(report_markdown(report, image and image.name), encoding="utf-8")


def report_markdown(report: dict, image: str | None) -> str:
    """A table for each search, and where texts differ."""
    machine, count = report["machine"], report["recordings"]
    parts = [
        f"# Whisper {report['model']}, long recordings\n",
        f"{count} recordings, {report['audio_seconds'] / HOUR_S:.2f} h; {machine['processor']}.\n",
    ]
    columns = (TIMES if report["timed"] else {}) | COUNTS
    for search, rows in by_search(report).items():
        there = {title: one for title, one in columns.items() if any(one[0] in row for row in rows)}
        table = [[row["label"], *cells(row, there)] for row in rows]
        parts.append(f"## {search}\n\n{markdown_table(['', *there], table, text_columns=1)}")
    if image:
        parts.append(f"![Seconds of an hour]({image})\n")
    if report["differences"]:
        parts.append("## Where texts or times differ from openai-whisper's first\n")
        parts.append("".join(map(_difference_line, report["differences"])))
    versions = ", ".join(f"{name} {one}" for name, one in machine["versions"].items())
    timed = TIMED.format(threads=machine["threads"]) if report["timed"] else ""
    parts.append(
        timed
        + NOTES.format(
            attempts=ATTEMPTS[report["fallback"]], cleaner=WHISPER_CLEANER, versions=versions
        )
        + "".join(f"- Left out: {who}: {why}.\n" for who, why in report["left_out"].items())
    )
    return "\n".join(parts)


def _difference_line(one: dict) -> str:
    theirs, ours = (
        f"«{text.strip()}» ({'-' if score is None else f'{score:.5f}'})"
        for text, score in zip(one["texts"], one["average_log_probabilities"], strict=True)
    )
    where = f"{one['recording']}, {one['search']}, {one['label']}, {one['start_s']:.2f} s"
    return f"- {where}: {theirs} and {ours}; in brackets the window's mean log-probability.\n"
