"""A stream of words at known times, and a decoder that reads them: its samples are their places."""

import random
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.longform.window import Clock, Window, WindowDecoding
from espnet_medusa.inference.longform.word_times import TimedWord
from espnet_medusa.networks.whisper.tokens import make_tokenizer, read_whisper_tokens
from espnet_medusa.networks.whisper.transcript import TranscriptText

RATE_HZ, FRAME_S = 16000, 0.032
TOKENIZER = make_tokenizer(51865)
TEXT = TranscriptText(TOKENIZER, read_whisper_tokens(TOKENIZER))
UNSURE_S = 0.4  # words that end later than this before the end of the audio are wrong
WORDS = [" yes", " no", " one", " two", " three", " four", " house", " tree", " river", " blue"]


@dataclass
class ScriptedStream:
    """Words with times; as ``SpeechStream``, their times are speech."""

    words: list[tuple[str, float, float]]  # text, start and end in s
    length_s: float
    added: int = 0  # samples
    forgotten: int = 0

    @property
    def samples(self) -> np.ndarray:
        return np.arange(round(self.length_s * RATE_HZ), dtype=np.float32)

    @property
    def text(self) -> str:
        return "".join(text for text, _, _ in self.words)

    def add(self, samples: np.ndarray, final: bool = False) -> None:
        self.added += len(samples)

    def places(self, start_s: float, end_s: float, threshold: float) -> np.ndarray:
        frames = np.arange(int(start_s / FRAME_S), int(np.ceil(end_s / FRAME_S)))
        times = FRAME_S * (frames + 0.5)
        spoken = np.zeros(len(frames), bool)
        for _, first, last in self.words:
            spoken |= (times >= first) & (times < last)
        return frames[spoken & (times < self.added / RATE_HZ)]

    def forget(self, sample: int) -> None:
        self.forgotten = sample


def random_stream(seed: int, count: int = 60, pause_s: float = 0.0) -> ScriptedStream:
    """Return words without repetition of a phrase; some are followed by a pause."""
    rng, words, time_s = random.Random(seed), [], 0.5
    for place in range(count):
        end_s = time_s + rng.uniform(0.15, 0.5)
        text = f"{rng.choice(WORDS)}{place:03}" + ("." if rng.random() < 0.1 else "")
        words.append((text, time_s, end_s))
        time_s = end_s + (rng.uniform(0.7, 3.0) if rng.random() < pause_s else 0.02)
    return ScriptedStream(words, time_s + 0.5)


@dataclass
class ScriptedDecoder:
    """A ``WindowDecoder`` that reads the words of a stream; words at the end of audio are wrong."""

    stream: ScriptedStream
    window_frames: int = 1000
    prompt_tokens: int = 223
    clock: Clock = Clock(TEXT.tokens.first_time, 2)
    text: TranscriptText = TEXT
    loops_at: tuple[float, float] = (0.0, 0.0)  # audio that ends here is decoded as a loop
    stops_s: float = 1e9  # texts end here, if the audio starts before
    said: list = field(default_factory=list)  # words of the last decoding, with times
    rows: list = field(default_factory=list)  # that were decoded, with start and end of the audio
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def features(self, samples):
        first = float(samples[0]) / RATE_HZ
        assert np.array_equal(samples, samples[0] + np.arange(len(samples))), "audio has no gaps"
        return replace(Window(0, len(samples) // 160), seek=round(100 * first))

    def encode(self, windows):
        ((features, window),) = windows
        assert window.frames <= self.window_frames
        return features

    def detects(self, language):
        return False

    def choose_languages(self, windows, languages):
        return languages

    def _within(self, start_s, end_s):
        inner = [one for one in self.stream.words if one[2] <= end_s + 1e-6]
        return [one for one in inner if (one[1] + one[2]) / 2 > start_s]

    def decode(self, encoded, rows, attempt):
        start_s, end_s = encoded.seek / 100, (encoded.seek + encoded.frames) / 100
        ((row),) = rows
        self.rows.append((start_s, end_s, row))
        words, prefix, whole = (
            self._within(start_s, end_s),
            TEXT.decode(row.prefix),
            self.stream.text,
        )
        if start_s < self.stops_s:
            words = [one for one in words if (one[1] + one[2]) / 2 <= self.stops_s]
        assert prefix in whole
        # Audio may begin a little before its prefix.
        after = whole.index(prefix) + len(prefix) if prefix else 0
        place = after - len(prefix)
        self.said = [one for one in self.stream.words if place <= whole.index(one[0]) < after]
        words = [one for one in words if whole.index(one[0]) >= after]
        # After a pause, and at the end of the stream, all words are right.
        is_clear = not words or end_s - words[-1][2] > 0.15 or self.stream.length_s - end_s < 0.1
        for text, first_s, last_s in words:
            wrong = last_s > end_s - UNSURE_S and not is_clear
            text = f" wrong{self.rng.randrange(10**6)}" if wrong else text
            self.said.append((text, first_s, last_s))
        text = "".join(text for text, _, _ in self.said)[len(prefix) :]
        if self.loops_at[0] <= end_s < self.loops_at[1]:
            text = " la" * 100
        tokens = tuple(TEXT.tokenizer(text, add_special_tokens=False)["input_ids"])
        decoding = WindowDecoding(tokens, TEXT.decode(tokens), 0.0, -0.3, 0.1)
        return [(decoding, DecodingStatistics(decoder_calls=1, tokens=len(tokens)))]

    def text_ends_s(self, encoded, rows, texts):
        return [self.align(encoded, 0, 0, None, texts[0])[-1].end_s]

    def align(self, encoded, row, frames, language, tokens):
        """Return a word for each token, with the times of the word that contains it."""
        ends = [*accumulate(len(text) for text, _, _ in self.said)]
        found, place = [], 0
        for token in tokens:
            text = TEXT.decode([token])
            _, *times_s = self.said[bisect_right(ends, place)]
            place += len(text)
            found.append(TimedWord(text, 1, *(time - encoded.seek / 100 for time in times_s), 0.9))
        return found
