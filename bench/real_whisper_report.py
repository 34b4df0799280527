"""Table and plot of ``real_whisper.py``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from compare_rows import MILLI, quartiles
from inputs import Utterance
from peers.transcriber import FASTER_WHISPER, Transcribed
from peers.way import PLAIN, Way
from stacked_bars import plot_encoder_and_decoder
from table_cells import cells
from word_errors import WHISPER_CLEANER, word_errors

from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.scoring.sclite import Counts

WAY = ("contestant", "weights", "search", "drafts")
PEER = (FASTER_WHISPER, "int8")  # whose time the others are compared with
COLUMNS = {  # title: figure and how it is written
    "encoder and features [ms]": ("encoder_ms", "{:.0f}"),
    "decoder [ms]": ("decoder_ms", "{:.0f}"),
    "all [ms]": ("ms", "{:.0f}"),
    "times faster-whisper int8's speed": ("speed", "{:.2f}"),
    "calls": ("calls", "{:.1f}"),
    "tokens a call": ("tokens_per_call", "{:.2f}"),
    "WER [%]": ("wer", "{:.1f}"),
    "same text": ("same_text", "{}"),
}
NOTES = """\
- One process for each program and type of weights, {threads} threads each, utterance after
  utterance in turns, samples to text. Everybody has its own features and its own encoder over 30 s;
  that of a draft model counts as encoder. Milliseconds are medians over utterances.
- *Times faster-whisper int8's speed*: its time over this one's, samples to text, in the same
  search; the median over utterances; more than 1: faster.
- WER after Whisper's normalizer ({cleaner}). *Same text*: utterances with the text of the same
  program, weights and search without drafts. *Calls*: of the decoder, the mean.
- Weights are those of one experiment, converted. faster-whisper transcribes through its
  `WhisperModel`, openai-whisper through `decode`, transformers through `generate`, all without
  timestamps and at temperature 0, otherwise with their own defaults: each ranks and ends a beam by
  its own rule, ours by openai-whisper's.
- {versions}.
"""


def make_report(
    name: str,
    utterances: Sequence[Utterance],
    found: Mapping[Way, Mapping[str, Transcribed]],
    left_out: Mapping[str, str],
    machine: dict,
) -> dict:
    """All figures.

    Args:
        name: Of the model.
        utterances: With references.
        found: What everybody wrote, by way and utterance.
        left_out: Why somebody is not there.
        machine: As ``describe_machine`` says.
    """
    return {
        "model": name,
        "utterances": len(utterances),
        "audio_seconds": sum(utterance.seconds for utterance in utterances),
        "machine": machine,
        "left_out": dict(left_out),
        "transcribers": [
            {name: getattr(way, name) for name in WAY}
            | {"label": label(way)}
            | figures(way, found, utterances)
            for way in found
        ],
    }


def label(way: Way) -> str:
    """Who, with which weights and drafts."""
    who, _, drafts = way.label.partition(", ")
    return ", ".join(filter(None, [who, way.weights, drafts]))


def figures(
    way: Way, found: Mapping[Way, Mapping[str, Transcribed]], utterances: Sequence[Utterance]
) -> dict:
    """Of one way."""
    ids = [utterance.id for utterance in utterances]
    ours = [found[way][name] for name in ids]
    references = [utterance.text for utterance in utterances]
    errors = sum(word_errors(references, [one.text for one in ours]), Counts())
    row = {
        "encoder_ms": MILLI * median(one.encoder_seconds for one in ours),
        "decoder_ms": MILLI * median(one.decoder_seconds for one in ours),
        "ms": MILLI * median(one.seconds for one in ours),
        "seconds": sum(one.seconds for one in ours),
        "wer": errors.error_percent,
    }
    peer = found.get(Way(*PEER, way.search))
    if peer is not None:
        ratios = [peer[name].seconds / one.seconds for name, one in zip(ids, ours, strict=True)]
        row["speed"] = quartiles(ratios)[1]
    if ours[0].calls is not None:
        calls = sum(one.calls for one in ours)
        row["calls"] = mean(one.calls for one in ours)
        row["tokens_per_call"] = sum(one.tokens for one in ours) / calls if calls else 0.0
    plain = found.get(Way(way.contestant, way.weights, way.search))
    if way.drafts != PLAIN and plain is not None:
        same = sum(plain[name].text == one.text for name, one in zip(ids, ours, strict=True))
        row["same_text"] = f"{same}/{len(ids)}"
    return row


def write_report(report: dict, output: Path) -> None:
    """Write Markdown, the figures as JSON and the plot."""
    output.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1) + "\n"
    output.with_suffix(".json").write_text(text, encoding="utf-8")
    plot_encoder_and_decoder(
        report["model"],
        by_search(report),
        ("encoder_ms", "decoder_ms"),
        "ms an utterance (medians)",
        output.with_suffix(".png"),
    )
    output.write_text(report_markdown(report, output.with_suffix(".png").name), encoding="utf-8")


def report_markdown(report: dict, image: str) -> str:
    """A table for each search."""
    machine, count = report["machine"], report["utterances"]
    parts = [
        f"# Whisper {report['model']}, samples to text\n",
        f"{count} utterances of {report['audio_seconds'] / count:.1f} s on average, one after the "
        f"other; {machine['processor']}, {machine['threads']} threads.\n",
    ]
    for search, rows in by_search(report).items():
        table = [[row["label"], *cells(row, COLUMNS)] for row in rows]
        parts.append(f"## {search}\n\n{markdown_table(['', *COLUMNS], table, text_columns=1)}")
    parts.append(f"![Samples to text]({image})\n")
    versions = ", ".join(f"{name} {one}" for name, one in machine["versions"].items())
    parts.append(
        NOTES.format(threads=machine["threads"], cleaner=WHISPER_CLEANER, versions=versions)
        + "".join(f"- Left out: {who}: {why}.\n" for who, why in report["left_out"].items())
    )
    return "\n".join(parts)


def by_search(report: dict) -> dict[str, list[dict]]:
    """Rows of each search, in order."""
    groups: dict[str, list[dict]] = {}
    for row in report["transcribers"]:
        groups.setdefault(row["search"], []).append(row)
    return groups
