"""Figures of live systems, their table and their plot."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jiwer
import numpy as np
from espnet2.text.cleaner import TextCleaner
from live_delays import confirmed_words, delays, revised_words
from live_streams import Stream
from live_systems.base import Event, Setting
from matplotlib import pyplot

from espnet_medusa.recipes.report.markdown import markdown_table
from espnet_medusa.recipes.report.style import COLORS, MARKERS, save

WER, MEDIAN, PROCESSOR = "WER [%]", "delay, median [s]", "processor s per s"
YAAL = "LongYAAL [s]"
WITHOUT = "without computation"
COLUMNS = {
    WER: "{:.2f}", MEDIAN: "{:.2f}", "mean [s]": "{:.2f}", "95% [s]": "{:.2f}",
    f"{WITHOUT}: median [s]": "{:.2f}", f"{WITHOUT}: mean [s]": "{:.2f}",
    f"{WITHOUT}: 95% [s]": "{:.2f}", YAAL: "{:.2f}", f"{WITHOUT}: {YAAL}": "{:.2f}",
    "revised words per 100": "{:.0f}", "calls per update": "{:.1f}", "ms per update": "{:.0f}",
    PROCESSOR: "{:.3f}", "MB at most": "{:.0f}",
}  # fmt: skip
HEADER = ["system", "policy", "updates [s]", "search and precision", *COLUMNS]
NOTES = """\
A word's delay is the time when it was confirmed minus the end of the word in its utterance, by our
alignment of the reference. Delays are those of words that equal their word in the reference.
Without computation, the time of the last audio that the update took replaces the time when the
update was finished. Updates of a slow system take more audio, so these delays are longer, too.
Elapsed times are measured, and a virtual clock adds them to the time of the audio.

LongYAAL is OmniSTEval's, over all words. Revised words are shown words that a later update replaced
or took back, per 100 words of the final text; systems without a figure show only confirmed words.
Calls are steps of the search, where beams of a step are one; alignments are not counted. Means per
update are those of updates that decoded. Processor seconds are those of all threads. Memory is that
of the process, imports included. The language is given. Utterances longer than 30 s are left out of
streams.
"""


def measure(
    setting: Setting, pairs: Sequence[tuple[Stream, Sequence[Event], float]]
) -> dict[str, float | None]:
    """Return the figures of a setting.

    Args:
        pairs: Streams with their events and the peak memory of the process in MB.
    """
    clean = TextCleaner("whisper_en")
    texts = [clean("".join(event.confirmed for event in events)) for _, events, _ in pairs]
    events = [event for _, several, _ in pairs for event in several]
    audio_s = sum(several[-1].audio_s for _, several, _ in pairs)
    figures = {
        WER: 100 * jiwer.wer([clean(stream.text) for stream, *_ in pairs], texts),
        PROCESSOR: sum(event.processor_s for event in events) / audio_s,
        "MB at most": max(peak_mb for *_, peak_mb in pairs),
    }
    if not setting.is_live:
        return figures
    found = [delay for stream, several, _ in pairs for delay in delays(stream.words, several)]
    names = [MEDIAN, "mean [s]", "95% [s]"]
    # No word may equal its word in the reference.
    for values, start in zip(zip(*found, strict=True), ("", f"{WITHOUT}: "), strict=False):
        middle, late = np.percentile(values, [50, 95])
        for name, value in zip(names, (middle, np.mean(values), late), strict=True):
            figures[start + name.removeprefix("delay, " * bool(start))] = float(value)
    revised = [revised_words(several) for _, several, _ in pairs]
    if None not in revised:
        words = sum(len(confirmed_words(several)) for _, several, _ in pairs)
        figures["revised words per 100"] = 100 * sum(revised) / max(words, 1)
    decoded = [event for event in events if event.calls]
    if decoded:
        figures["calls per update"] = sum(event.calls for event in decoded) / len(decoded)
        figures["ms per update"] = 1000 * sum(event.seconds for event in decoded) / len(decoded)
    return figures


def write_table(rows: Iterable[tuple[Setting, Mapping[str, float | None]]]) -> str:
    cells = []
    for setting, figures in rows:
        names = [setting.system, setting.policy, f"{setting.update_s:g}" * setting.is_live]
        shown = [
            "" if figures.get(name) is None else form.format(figures[name])
            for name, form in COLUMNS.items()
        ]
        cells.append([*names, setting.notes, *shown])
    return markdown_table(HEADER, cells, text_columns=4)


def plot(rows: Sequence[tuple[Setting, Mapping[str, float | None]]], path: Path) -> None:
    """Plot WER against the median delay, a color per system and a marker per setting."""
    systems = list(dict.fromkeys(setting.system for setting, _ in rows))
    figure, axis = pyplot.subplots(figsize=(9.0, 4.4))
    for setting, figures in rows:
        of_system = [other for other, _ in rows if other.system == setting.system]
        color = COLORS[systems.index(setting.system) % len(COLORS)]
        if not setting.is_live:
            axis.axhline(figures[WER], color=color, ls="--", lw=1.2, label=setting.name)
            continue
        axis.plot(
            figures.get(MEDIAN, np.nan), figures[WER], ls="", color=color, ms=8, label=setting.name,
            marker=MARKERS[of_system.index(setting) % len(MARKERS)],
        )  # fmt: skip
    axis.set(xlabel="median delay of a word, with computation [s]", ylabel=WER)
    if any(MEDIAN in figures for _, figures in rows):
        axis.set_xscale("log", subs=[2, 5])
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("{x:g}")
    axis.set_ylim(bottom=0)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    save(figure, path)
