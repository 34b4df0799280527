"""Streams: utterances joined in order, with the end of each word of their references."""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from inputs import list_utterances
from live_delays import words_of

from espnet_medusa import Speech2Text
from espnet_medusa.data.audio.reader import read_audio, resample
from espnet_medusa.data.audio.source import open_file
from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.window import Window
from espnet_medusa.inference.whisper_windows import WhisperWindows

Spoken = tuple[np.ndarray, int, str]  # samples, their rate in Hz, and reference


@dataclass(frozen=True)
class Stream:
    """Joined utterances."""

    name: str
    samples: np.ndarray  # (N,), float32
    text: str  # reference
    words: list[tuple[str, float]]  # of the reference, with their ends in s
    spans: list[tuple[float, float, str]]  # start and length in s, and reference of each utterance


def read_chapter(trans: Path) -> Iterator[Spoken]:
    """Yield the utterances of a chapter of LibriSpeech."""
    for line in trans.read_text(encoding="utf-8").splitlines():
        name, text = line.split(maxsplit=1)
        yield *read_audio(open_file(str(trans.with_name(f"{name}.flac")))), text


def read_data_dir(data_dir: Path) -> Iterator[Spoken]:
    """Yield the utterances of a Kaldi data directory."""
    for one in list_utterances(data_dir):
        yield *read_audio(one.entry), one.text


def choose_sources(trans: str | None, chapters: int, data_dirs: Sequence[Path]) -> dict[str, Path]:
    """Return chapters, evenly chosen among those of a pattern, and data directories, by name."""
    paths = sorted(glob.glob(trans or "", recursive=True))
    if trans and not paths:
        raise InputError(f"--trans: {trans}; no file matches; give LibriSpeech's .trans.txt files")
    chosen = paths[:: max(len(paths) // chapters, 1)][:chapters]
    sources = {Path(path).name.removesuffix(".trans.txt"): Path(path) for path in chosen}
    return sources | {path.name: path for path in data_dirs}


class StreamReader:
    """Joins utterances, and aligns their references with our aligner of word times."""

    def __init__(self, whisper: str, minutes: float, **options):
        self.model = Speech2Text.from_pretrained(whisper, search="greedy", language="en", **options)
        timed = LongFormOptions(word_timestamps=True)
        self.windows, self.most_s = WhisperWindows(self.model.model, timed), 60 * minutes

    def read(self, name: str, path: Path) -> Stream:
        """Read a chapter or data directory; utterances longer than the window are left out."""
        rate_hz, parts, words, spans, start_s = self.model.sample_rate_hz, [], [], [], 0.0
        for samples, given_hz, text in read_data_dir(path) if path.is_dir() else read_chapter(path):
            samples = resample(samples, given_hz, rate_hz).astype(np.float32)
            length_s, text = len(samples) / rate_hz, text.lower()
            if length_s > self.model.window_s:
                continue
            parts.append(samples)
            words += [(word, start_s + end_s) for word, end_s in self._ends(samples, text)]
            spans.append((start_s, length_s, text))
            start_s += length_s
            if start_s > self.most_s:
                break
        text = " ".join(text for *_, text in spans)
        return Stream(name, np.concatenate(parts), text, words, spans)

    def _ends(self, samples: np.ndarray, text: str) -> list[tuple[str, float]]:
        """Return the words of an utterance and their ends in s."""
        features = self.windows.features(samples)
        window = Window(0, features.frames)
        encoded = self.windows.encode([(features, window)])
        tokens = self.windows.text.encode(text)
        (language,) = self.windows.choose_languages([(None, [])], [None])
        timed = self.windows.align(encoded, 0, window.frames, language, tokens)
        return words_of((word.text, word.end_s) for word in timed)
