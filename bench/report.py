"""The report: tables in Markdown, figures as JSON, and a plot.

    python bench/report.py bench/results/MACHINE/*.json     # writes the Markdown and plots anew

A report is a dict: its kind, title, circumstances, and the rows of ``figures.py``. ``COLUMNS`` has
the columns of each kind. Reports of memories share one page, ``comparison.md``.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from contestants.base import (
    CONDITIONS,
    LENGTHS,
    MEMORIES,
    OPENVINO,
    PLAN,
    RECORDINGS,
    SPEECH,
    WHISPER_CPP,
)
from plots import plot_bars, plot_calls, plot_curves, plot_lengths, plot_saved_calls

from espnet_medusa.recipes.report.markdown import markdown_table
from espnet_medusa.recipes.report.measures import Estimate, milliseconds

MEGA = 1e6
FIRST_STEPS = 8  # steps whose acceptance is shown
Report = dict[str, Any]


def _median(row: Mapping, name: str) -> str:
    return "" if name not in row else f"{row[name][1]:.1f}"


def _spread(row: Mapping, name: str) -> str:
    """Median (lower to upper quartile)."""
    return "{1:.2f} ({0:.2f}-{2:.2f})".format(*row[name])


def _value(row: Mapping, name: str, form: str = "{:.2f}") -> str:
    """A number or the value of an estimate; empty where there is none."""
    value = row.get(name)
    value = value["value"] if isinstance(value, dict) else value
    return "" if value is None else form.format(value)


def _interval(row: Mapping, name: str) -> str:
    """Value [lower, upper] of an estimate."""
    return Estimate(**row[name]).cell() if row.get(name) else ""


_whole, _short, _as_is, _thousandths, _tenths_of_thousandths = (
    partial(_value, form=form) for form in ("{:.0f}", "{:.1f}", "{}", "{:.3f}", "{:.4f}")
)


def _length(row: Mapping, name: str) -> str:
    return f"{row['ms_by_seconds'][name]:.0f}"


def _milliseconds(row: Mapping, name: str) -> str:
    return "-" if row.get(name) is None else milliseconds(row[name])


def _steps(row: Mapping, name: str) -> str:
    return " ".join(f"{share:.0f}" for share in row.get(name, ())[:FIRST_STEPS]) or "-"


def _tokens_and_nodes(row: Mapping, name: str) -> str:
    tokens = _value(row, name)
    return tokens and f"{tokens}, {_short(row, 'nodes_per_call')}"


def _same_tokens(row: Mapping, name: str) -> str:
    return "" if row.get(name) is None else f"{row[name]}/{row['inputs']}"


def _megabytes(row: Mapping, name: str) -> str:
    """Peak (before the decoder was loaded)."""
    return f"{row[name] / MEGA:.0f} ({row['start_bytes'] / MEGA:.0f})" if name in row else ""


SPEED = "speedup over faster-whisper int8"
# By kind and title: the figure of a row, and the function that formats it. An empty column is left
# out, unless ``ALWAYS`` has it.
COLUMNS = {
    MEMORIES: {
        "contestant": ("label", _as_is),
        "weights": ("weights", _as_is),
        "ms per token": ("ms_per_token", _spread),
        "ms per input": ("ms_per_input", _median),
        "tokens, nodes per call": ("tokens_per_call", _tokens_and_nodes),
        "speedup over ctranslate2 int8": ("speed", _value),
        "encoder ms": ("encoder_ms", _short),
        "RTF": ("rtf", _tenths_of_thousandths),
        "WER": ("wer", _short),
        "same tokens": ("same_tokens", _same_tokens),
        "MB": ("peak_bytes", _megabytes),
    },
    SPEECH: {
        "": ("label", _as_is),
        "encoder and features [ms]": ("encoder_ms", _whole),
        "decoder [ms]": ("decoder_ms", _whole),
        "all [ms]": ("ms", _whole),
        SPEED: ("speed", _value),
        "calls": ("calls_per_input", _short),
        "tokens per call": ("tokens_per_call", _value),
        "WER [%]": ("wer", _short),
        "same text": ("same", _as_is),
    },
    LENGTHS: {"": ("label", _as_is), SPEED: ("speed", _value)},
    RECORDINGS: {
        "": ("label", _as_is),
        "encoder and features [s]": ("encoder_s", _short),
        "decoder [s]": ("decoder_s", _short),
        "all [s]": ("seconds_per_hour", _short),
        SPEED: ("speed", _value),
        "calls": ("calls", _as_is),
        "tokens per call": ("tokens_per_call", _value),
        "WER [%]": ("wer", _value),
        "segments": ("segments", _as_is),
        "of them above temperature 0": ("drawn", _as_is),
        "recordings same as openai-whisper": ("as_openai", _as_is),
        "segments same as openai-whisper": ("segments_as_openai", _as_is),
        "word times differ by [s] (median)": ("word_times_differ_s", _thousandths),
        "recordings same as the baseline": ("same", _as_is),
    },
    PLAN: {
        "drafter": ("label", _as_is),
        "WER [%]": ("wer", _interval),
        "calls per utterance": ("calls_per_input", _interval),
        "times fewer calls": ("fewer_calls", lambda row, name: _value(row, name) or "1.00"),
        "without calls [%]": ("no_call", _whole),
        "tokens per call": ("tokens_per_call", _interval),
        "nodes per call": ("nodes_per_call", _short),
        f"accepted, steps 1 .. {FIRST_STEPS} [%]": ("accepted", _steps),
        "draft model's calls": ("draft_calls", lambda row, name: _short(row, name) or "-"),
        "encoder ms (median)": ("encoder_ms", _milliseconds),
        "decoder ms (median)": ("decoder_ms", _milliseconds),
        "decoder s (all)": ("decoder_seconds", _short),
        "drafting ms": ("draft_ms", _milliseconds),
        "speedup over the baseline": (
            "speed", lambda row, name: _interval(row, name) if name in row else "1.00"
        ),
        "same text": ("same", _as_is),
        "same n-best": ("same_nbest", _as_is),
    },
    CONDITIONS: {
        "condition": ("condition", _as_is),
        "clips": ("clips", _as_is),
        "WER [%]": ("faster_whisper_wer", _interval),
        "WER [%], ours": ("ours_wer", _interval),
        "inserted words": ("faster_whisper_inserted", _as_is),
        "inserted words, ours": ("ours_inserted", _as_is),
        "looped texts": ("faster_whisper_looped", _as_is),
        "looped texts, ours": ("ours_looped", _as_is),
        "words per minute": ("faster_whisper_words_per_minute", _short),
        "words per minute with --vad_filter": ("faster_whisper_vad_words_per_minute", _short),
        "words per minute, ours": ("ours_words_per_minute", _short),
        "ms per clip": ("faster_whisper_ms", _whole),
        "ms per clip, ours": ("ours_ms", _whole),
        "speedup": ("speedup", _interval),
    },
}  # fmt: skip
ALWAYS = {MEMORIES: ("tokens, nodes per call", "same tokens", "MB"), SPEECH: (*COLUMNS[SPEECH],)}
UNTIMED = {"encoder_ms", "decoder_ms", "ms", "seconds", "decoder_seconds", "draft_ms", "speed",
           "encoder_s", "decoder_s", "seconds_per_hour"}  # fmt: skip
BARS = {  # figures of encoder and decoder, and their unit
    SPEECH: (("encoder_ms", "decoder_ms"), "ms per utterance (median)"),
    RECORDINGS: (("encoder_s", "decoder_s"), "s per hour of audio"),
}
PROGRAMS = """\
- All weights are converted from one experiment. faster-whisper runs `WhisperModel.transcribe`,
  openai-whisper `decode`, transformers `generate`, without timestamps, at temperature 0, otherwise
  with their own defaults. Each ranks and ends a beam by its own rule, ours by openai-whisper's.
"""
PEERS = """\
- OpenVINO GenAI runs `WhisperPipeline.generate` on weights that optimum-intel converts (int8 with
  bfloat16 arithmetic). whisper.cpp runs `whisper_full` on weights in float16, without fallback.
"""
NOTES = {
    MEMORIES: """\
- Each contestant and type of weights has a process of its own. They take turns on each input while
  the others sleep. Figures are medians (quartiles) over inputs, or batches, of medians over rounds.
  *ms per token*: decoder, with the end symbol if it is decoded. *ms per input*: with the encoder.
- *tokens, nodes per call*: tokens written, and tokens evaluated, by a call of the main decoder. The
  CTC projection and the draft model's calls count as time of the decoder. The draft model is the
  assistant of *transformers assisted*.
- *speedup over ctranslate2 int8*: its seconds over these, median over inputs.
- *same tokens*: inputs with the tokens of ours in float32 without drafts.
- *MB*: peak memory (resident set size) of a process that decodes one input, with imports; in
  brackets the memory before it loaded its decoder.
- CTranslate2 is the engine of faster-whisper. *espnet uncached* is ESPnet's BatchBeamSearch over a
  decoder that recomputes its prefixes, as ESPnet's Whisper decoder does.
- Scores are not normalized by length, and have no CTC or language model. Each contestant ends a
  beam by its own rule.
- Trained models: all contestants decode the float32 output of our encoder. Decoders of others have
  no mask for padded frames, so in batches they attend to zeros after shorter utterances.
- Random weights: encoder outputs of 1500 random frames, the same number of tokens from every
  contestant, without drafts, because drafts of random heads are never accepted.
""",
    SPEECH: """\
- Each program and type of weights has a process of its own, with its own features and its own
  encoder over 30 s. They take turns on each utterance. Milliseconds are medians over utterances;
  the encoder of a draft model counts as encoder.
- *Speedup over faster-whisper int8*: its seconds over these in the same search, samples to text,
  median over utterances. *Calls*: decoder calls, mean. *Same text*: utterances with the text of the
  same program, weights and search without drafts.
""" + PROGRAMS,
    LENGTHS: """\
- The same utterances are cut to each length. Programs take turns on each clip, as processes of
  their own. Milliseconds are from samples to text, medians over clips.
- *Speedup over faster-whisper int8*: its seconds over these, median over all clips.
""" + PROGRAMS,
    RECORDINGS: """\
- Programs take turns on each recording. Seconds are per hour of audio, samples to segments.
  *Speedup over faster-whisper int8*: over its decoding of one window at a time.
- *In batches*: chunks that voice activity detection finds are decoded together, one segment each.
  Otherwise each program has its own defaults; ours ends and ranks a beam as openai-whisper.
- *Same as openai-whisper*: segments equal in start, end and text (same search, float32).
""",
    PLAN: """\
- *Accepted*: percentage of the drafts of this step that were accepted. In square brackets: 95%
  bootstrap interval over utterances.
- *Same text*, *same n-best*: utterances with the output of the first row in the same search. N-best
  lists are the same if they have the same token sequences, with scores less than 0.001 apart.
- *Decoder*: search without encoder, with drafting. *Drafting*, the mean, includes a draft model's
  own encoder and the CTC projection. *Speedup over the baseline*: decoder seconds of the first row
  over these, all utterances. Rows with equal encoders share one run of it.
""",
    CONDITIONS: """\
- *Ours* is `espnet-medusa-transcribe` without options. The other columns are faster-whisper's
  (int8, beam 5, fallback).
- In square brackets: 95% bootstrap interval over clips. WER after Whisper's English normalizer.
  Looped: compression ratio above 2.4.
""",
}  # fmt: skip


def make_report(
    kind: str, title: str, details: str, machine: Mapping[str, Any], rows: Sequence[Mapping],
    left_out: Mapping[str, str] | None = None, timed: bool = True,
) -> Report:  # fmt: skip
    """Return the fields that all kinds have in common; ``timed``: whether it shows times."""
    return {
        "kind": kind, "title": title, "details": details, "timed": timed, "machine": machine,
        "left_out": dict(left_out or {}), "rows": rows,
    }  # fmt: skip


def write_report(report: Report, output: Path) -> None:
    """Write .md, .json and .png files; for decoders (``MEMORIES``), rewrite ``comparison.md``."""
    output.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    output.with_suffix(".json").write_text(text, encoding="utf-8")
    if report["kind"] == MEMORIES:
        write_comparison(output.parent)
        return
    image = output.with_suffix(".png")
    plotted = plot(report, image)
    output.write_text(page([report], image.name if plotted else None), encoding="utf-8")


def write_comparison(folder: Path) -> None:
    """Write the page and the plot of all reports of memories in a folder."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    reports = [one for one in reports if one.get("kind") == MEMORIES]
    # Trained ones first, then random ones by size.
    reports.sort(key=lambda one: (one["fixed_tokens"] or 0, one["sizes"]["hidden_size"]))
    image = folder / "calls.png"
    plot_calls(reports, image)
    (folder / "comparison.md").write_text(page(reports, image.name), encoding="utf-8")


def plot(report: Report, path: Path) -> bool:
    """Write the plot of one report; False: nothing is plotted."""
    kind, searches = report["kind"], by_search(report)
    if kind == PLAN:
        with_hours = any(row.get("hours") is not None for row in report["rows"])
        (plot_curves if with_hours else plot_saved_calls)(searches, path)
    elif kind == LENGTHS:
        plot_lengths(searches, path)
    elif kind in BARS and report["timed"]:
        plot_bars(searches, *BARS[kind], path)
    else:
        return False
    return True


def page(reports: Sequence[Report], image: str | None) -> str:
    """Return the Markdown of reports of one kind, with a table for each search."""
    first, many = reports[0], reports[0]["kind"] == MEMORIES
    machine, parts = first["machine"], []
    if many:
        parts.append(f"# Whisper decoders compared: {machine['device']}, {machine['processor']}\n")
    for report in reports:
        title, details = report["title"], report["details"]
        parts.append(f"## {title}: {details}\n" if many else f"# {title}\n\n{details}.\n")
        for search, rows in by_search(report).items():
            table = markdown_table(*cells(report, rows), text_columns=2 if many else 1)
            parts.append(f"##{'#' * many} {search}\n\n{table}")
        if report.get("differences"):
            parts.append("## First differences from openai-whisper's segments\n")
            parts.append("".join(map(_difference, report["differences"])))
        if many and report["left_out"]:
            parts.append("".join(_left_out(report)))
    if image:
        parts.append(f"![Plot]({image})\n")
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    newer = any(row.get("contestant") in (OPENVINO, WHISPER_CPP) for row in first["rows"])
    notes = [NOTES[first["kind"]], PEERS * newer]
    notes += [f"- {note}.\n" for note in first.get("notes", ())]
    notes.append(f"- {machine['threads']} threads; {versions}.\n")
    return "\n".join([*parts, "".join(notes + ([] if many else _left_out(first)))])


def _left_out(report: Report) -> list[str]:
    return [f"- Left out: {name}: {reason}.\n" for name, reason in report["left_out"].items()]


def by_search(report: Report) -> dict[str, list[dict]]:
    """Return the rows of each table: one per search, group of conditions, or search and batch."""
    groups: dict[str, list[dict]] = {}
    for row in report["rows"]:
        batch = f", batch {row['batch_size']}" if report["kind"] == MEMORIES else ""
        groups.setdefault(row.get("group") or row["search"] + batch, []).append(row)
    return groups


def cells(report: Report, rows: Sequence[dict]) -> tuple[list[str], list[list[str]]]:
    """Return titles and cells of the columns that have any figures."""
    titles, columns, selected = [], [], COLUMNS[report["kind"]]
    if report["kind"] == LENGTHS:
        selected = selected | {f"{one} s [ms]": (one, _length) for one in rows[0]["ms_by_seconds"]}
    for title, (name, form) in selected.items():
        if not report["timed"] and name in UNTIMED:
            continue
        if name == "no_call" and not any(row.get(name) for row in rows):
            continue
        column = [form(row, name) for row in rows]
        if title in ALWAYS.get(report["kind"], ()) or any(cell not in ("", "-") for cell in column):
            titles.append(title)
            columns.append(column)
    return titles, [[*row] for row in zip(*columns, strict=True)]


def _difference(one: dict) -> str:
    theirs, ours = (
        f"«{text.strip()}» ({'-' if score is None else f'{score:.5f}'})"
        for text, score in zip(one["texts"], one["average_log_probabilities"], strict=True)
    )
    where = f"{one['recording']}, {one['search']}, {one['label']}, {one['start_s']:.2f} s"
    return f"- {where}: {theirs} and {ours}; in brackets the window's mean log-probability.\n"


def main() -> None:
    """Write pages and plots anew from the JSON files of the command line."""
    for path in map(Path, sys.argv[1:]):
        write_report(json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".md"))


if __name__ == "__main__":
    main()
