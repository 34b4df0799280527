"""Live transcription: pieces of audio in, confirmed and tentative words out.

An update decodes a buffer of the last seconds again, in one window without timestamps. Confirmed
words in the buffer are a known prefix of its text, and the tentative words of the last update
draft. So an update needs few decoder calls, and its text is that of decoding the same buffer,
prompt and prefix without drafts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from espnet_medusa.data.audio.voice_activity import MARGIN_S, RATE_HZ
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.live.live_audio import LiveAudio
from espnet_medusa.inference.live.live_options import AGREEMENT, ATTENTION, LiveOptions
from espnet_medusa.inference.live.live_words import (
    GAP_S,
    LiveUpdate,
    LiveWord,
    agreed,
    attended,
    choose_cut,
    count_closed,
    make_segment,
    spread,
    whole,
    with_times,
)
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import Row
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.inference.longform.window import (
    FRAMES_PER_S,
    Window,
    WindowDecoding,
    compression_ratio,
)
from espnet_medusa.inference.longform.window_steps import Attempt, WindowDecoder
from espnet_medusa.networks.whisper.transcript import split_words

LEAST_S = 0.1  # of audio and of speech to decode
AFTER_S = 0.2  # audio after the last speech that an update needs, so that the next one is spared
LACKING_S = 1.3  # speech after a text that ended early, as for files
LANGUAGE_S = 2.0  # of speech, before the language is no longer detected again


@dataclass(frozen=True)
class Decoded:
    """The last decoding of the buffer."""

    encoded: Any  # of the ``WindowDecoder``
    frames: int  # of 10 ms
    end_s: float  # of the buffer


@dataclass(frozen=True)
class Moment:
    """What is known of the audio of a buffer when it has been decoded."""

    end_s: float  # of the buffer
    spoken_s: float  # end of the last speech
    speech_s: float  # duration of all speech
    last: bool  # no audio follows
    full: bool  # the buffer fills the window
    is_pause: bool  # the silence at its end confirms words
    lacks: bool  # speech goes on where the text has ended

    @property
    def silence_s(self) -> float:
        return self.end_s - self.spoken_s

    @property
    def is_break(self) -> bool:
        """Whether the silence at the end also ends a segment."""
        return self.is_pause and self.silence_s >= GAP_S


class LiveTranscriber:
    """Transcribes a stream; ``decoder`` decodes greedily or by beam search, at temperature 0.

    ``language``: code; None: that of the decode options. Raises InputError for an unknown one.
    """

    def __init__(
        self,
        decoder: WindowDecoder,
        options: LongFormOptions,
        live: LiveOptions,
        language: str | None = None,
    ):
        self.decoder, self.options, self.live = decoder, options, live
        self.audio = LiveAudio(options.skip_silence)
        self.window_s = decoder.window_frames / FRAMES_PER_S
        self.most_tokens = (decoder.prompt_tokens + 1) // 2  # a quarter of the context
        self.detects = decoder.detects(language)
        self.language, self.language_known = None, not self.detects
        if not self.detects:
            (self.language,) = decoder.choose_languages([(None, [])], [language])
        self.prompt = decoder.text.encode(options.initial_prompt or "")
        self.words: tuple[LiveWord, ...] = ()  # confirmed, in the buffer
        self.before: tuple[LiveWord, ...] = ()  # confirmed, of a segment that began before it
        self.hypotheses: list[tuple[LiveWord, ...]] = []  # words after these, of the last updates
        self.decoded: Decoded | None = None  # None: the buffer's start has moved since
        self.last: WindowDecoding | None = None  # the last decoding of any buffer
        self.changed_s = 0.0  # end of the buffer when the text was another one
        self.updated = 0  # samples at the last update
        self.statistics = DecodingStatistics()  # of all updates

    def add(self, samples: np.ndarray) -> None:
        """Add samples (N,) in [-1, 1] at 16 kHz, of any number."""
        self.audio.add(samples)

    def update(self) -> LiveUpdate | None:
        """Decode the buffer if there is enough new audio, else return None."""
        if self.audio.added - self.updated < round(self.live.update_seconds * RATE_HZ):
            return None
        return self._update(final=False)

    def finish(self) -> LiveUpdate:
        """Decode the rest of the audio, and confirm all words."""
        return self._update(final=True)

    def _update(self, final: bool) -> LiveUpdate:
        started, counted = time.perf_counter(), self.statistics
        self.statistics = DecodingStatistics()
        self.updated = self.audio.added
        self.audio.take(final)
        start_s, words, segments = self.audio.start_s, [], []
        while True:
            self._skip_silence(final)
            end_s = min(self.audio.start_s + self.window_s, self.audio.end_s)
            at_end, before_s = end_s == self.audio.end_s, self.audio.start_s
            new, ended = self._step(end_s, final and at_end)
            words += new
            segments += ended
            if at_end and not (final and before_s < self.audio.start_s < end_s):
                break
            if not at_end and self.audio.start_s == before_s:  # words have odd times
                self.hypotheses = []
                self._leave(len(self.words), before_s + self.window_s / 4)
        statistics = self.statistics
        statistics.total_seconds = time.perf_counter() - started
        statistics.words = len("".join(word.text for word in words).split())
        self.statistics = counted + statistics
        self.statistics.audio_seconds = self.audio.end_s
        return LiveUpdate(
            tuple(words), self._tentative, tuple(segments), start_s, self.audio.end_s,
            self.language, statistics,
        )  # fmt: skip

    @property
    def _tentative(self) -> tuple[LiveWord, ...]:
        return self.hypotheses[-1] if self.hypotheses else ()

    def _skip_silence(self, final: bool) -> None:
        """Move the start of a buffer without words to its first speech."""
        audio = self.audio
        if self.words or self._tentative:
            return
        begins_s = audio.speech_begins_s(audio.start_s, audio.end_s)
        if begins_s is None:
            begins_s = audio.end_s + (MARGIN_S if final else 0.0)
        if begins_s - MARGIN_S > audio.start_s:
            self._cut(begins_s - MARGIN_S)

    def _step(self, end_s: float, last: bool) -> tuple[tuple[LiveWord, ...], list[Segment]]:
        """Decode the buffer up to a time; return new confirmed words, and segments that ended.

        ``last``: no audio follows.
        """
        audio, full = self.audio, end_s - self.audio.start_s > self.window_s - LEAST_S
        speech_s = audio.speech_s(audio.start_s, end_s)
        if not self.words and min(speech_s, end_s - audio.start_s) < LEAST_S:
            if last or full:
                self._cut(end_s)
            return (), self._segments(ended=last)
        spoken_s = audio.speech_ends_s(audio.start_s, end_s)
        if self.decoded is None or spoken_s + AFTER_S > self.decoded.end_s:
            before = self._tentative
            self._decode(end_s, spoken_s)
            if last and not self.hypotheses:  # the text repeats itself
                self.hypotheses = [before]
        is_pause = end_s - spoken_s >= self.live.pause_seconds and audio.speech is not None
        lacks = audio.speech_s(self.changed_s, end_s) >= LACKING_S
        lacks = lacks and bool(self.words or self._tentative)
        now = Moment(end_s, spoken_s, speech_s, last, full, is_pause, lacks)
        new = self._confirm(self._count_confirmed(now))
        return new, self._shorten(now)

    def _decode(self, end_s: float, spoken_s: float) -> None:
        """Decode the buffer, and add its hypothesis; none if the text repeats itself."""
        samples = self.audio.read(round(end_s * RATE_HZ))
        features = self.decoder.features(samples)
        window = Window(0, features.frames)
        encoded = self.decoder.encode([(features, window)])
        if self.detects and not self.language_known:
            ((self.language, _),) = self.decoder.detect(encoded)
        decoding = self._attempt(encoded)
        if self._repeats_itself(decoding) and self.prompt:
            self.prompt = []
            decoding = self._attempt(encoded)
        self.decoded, self.last = Decoded(encoded, window.frames, end_s), decoding
        before = self._tentative
        if self._repeats_itself(decoding):
            self.hypotheses = []
            return
        tokens = self.decoder.text.text_tokens(decoding.tokens)
        if not self.words and decoding.is_silence(self.options):
            tokens = []
        words = split_words(tokens, self.decoder.text.decode, -1, self.language)
        from_s = self.words[-1].end_s if self.words else self.audio.start_s
        words = spread(words, min(from_s, spoken_s), spoken_s)
        if [word.text for word in words] != [word.text for word in before]:
            self.changed_s = end_s
        self.hypotheses = [*self.hypotheses, words][-self.live.live_agreement :]

    def _attempt(self, encoded: Any) -> WindowDecoding:
        """Decode with the confirmed words as prefix; the tentative words draft."""
        prefix = [token for word in self.words for token in word.tokens]
        draft = [token for word in self._tentative for token in word.tokens]
        # Half of the context is for new text, and a quarter for the prefix.
        most = min(self.most_tokens - 8, self.live.live_prompt_tokens)
        prompt = self.prompt[-most:] if most > 0 else []
        row = Row(0, prompt, self.language, draft or None, prefix)
        ((decoding, statistics),) = self.decoder.decode(encoded, [row], Attempt(0.0, False, True))
        self.statistics += statistics
        return decoding

    def _repeats_itself(self, decoding: WindowDecoding) -> bool:
        most = self.options.compression_ratio_threshold
        text = "".join(word.text for word in self.words) + decoding.text
        return most is not None and compression_ratio(text) > most

    def _count_confirmed(self, now: Moment) -> int:
        """Return how many of the tentative words are confirmed."""
        words, live = self._tentative, self.live
        if now.last:
            return len(words)
        most = whole(words)
        if now.is_break or now.lacks:
            return most
        # In a short pause the sentence may go on: its last mark is not confirmed.
        if now.is_pause:
            return most - (most > 0 and words[most - 1].is_mark)
        if live.live_policy == ATTENTION:
            self._align()
        count = attended(self._tentative, now.end_s - live.live_margin)
        if live.live_policy == AGREEMENT:
            enough = len(self.hypotheses) == live.live_agreement
            count = min(count, agreed(self.hypotheses)) if enough else 0
        if not self.language_known and now.speech_s < LANGUAGE_S:
            count = 0
        if now.full and words:  # the older half of the buffer, or one word
            self._align()
            oldest = attended(self._tentative, now.end_s - self.window_s / 2)
            return max(min(count, most), oldest, int(not self.words))
        return min(count, most)

    def _confirm(self, count: int) -> tuple[LiveWord, ...]:
        """Confirm the first tentative words."""
        if not count:
            return ()
        new = self._tentative[:count]
        self.words += new
        self.language_known = True
        # An older hypothesis with another text cannot agree with later ones.
        self.hypotheses = [
            words[count:] for words in self.hypotheses if agreed([words, new]) == count
        ]
        return new

    def _align(self) -> None:
        """Set the times of the words in the buffer; those that have such times keep them."""
        words = self.words + self._tentative
        if all(word.is_timed for word in words):
            return
        tokens = [token for word in words for token in word.tokens]
        timed = self.decoder.align(
            self.decoded.encoded, 0, self.decoded.frames, self.language, tokens
        )
        found, after_s = [], self.audio.start_s
        for word, exact in zip(words, with_times(words, timed, self.audio.start_s), strict=True):
            exact = word if word.is_timed else exact
            start_s = max(exact.start_s, after_s)
            after_s = max(exact.end_s, start_s)
            found.append(replace(exact, start_s=start_s, end_s=after_s))
        count = len(self.words)
        self.words = tuple(found[:count])
        if self.hypotheses:
            # Tentative words are aligned again, with more audio.
            self.hypotheses[-1] = tuple(found[count:])

    def _shorten(self, now: Moment) -> list[Segment]:
        """Remove confirmed words from the buffer if it is long; return segments that ended."""
        if now.last or now.lacks:
            return self._end_text(now)
        tokens = sum(len(word.tokens) for word in self.words)
        is_long = now.full or now.end_s - self.audio.start_s > self.live.buffer_seconds
        is_long |= tokens > self.most_tokens
        if now.is_pause and not self._tentative and (now.is_break or is_long):
            self._align()
            self._leave(len(self.words), now.spoken_s + min(MARGIN_S, now.silence_s / 2))
            return self._segments(ended=now.is_break)
        if not is_long or not (self.words or now.full):
            return []
        self._align()
        half_s = (self.audio.start_s + now.end_s) / 2
        count, start_s = choose_cut(self.words, half_s, self.most_tokens)
        if start_s < (least_s := self._least_s(now)):
            start_s, count = least_s, attended(self.words, least_s)
        if count or now.full:
            self._leave(count, start_s)
        return self._segments()

    def _end_text(self, now: Moment) -> list[Segment]:
        """Remove all words from the buffer; audio after them remains if it has speech."""
        self._align()
        text_end_s = max(self._text_end_s(), self._least_s(now))
        rest_s = self.audio.speech_s(text_end_s, now.end_s)
        go_on = rest_s >= LACKING_S and text_end_s >= self.audio.start_s + LEAST_S
        self._leave(len(self.words), text_end_s if go_on or not now.last else now.end_s)
        return self._segments(ended=now.last and not go_on)

    def _least_s(self, now: Moment) -> float:
        """Return where the next buffer begins at the earliest: a full one has to become shorter."""
        return self.audio.start_s + self.window_s / 4 * now.full

    def _text_end_s(self) -> float:
        """Return where the text of the buffer ends: the most probable timestamp after it."""
        words = self.words
        if not words:
            return self.audio.start_s
        tokens, end_s = [token for word in words for token in word.tokens], words[-1].end_s
        if not self.decoder.clock.count:
            return end_s
        row = Row(0, [], self.language)
        (seconds,) = self.decoder.text_ends_s(self.decoded.encoded, [row], [tokens])
        timestamp_s = self.audio.start_s + seconds
        return timestamp_s if timestamp_s >= words[-1].start_s else end_s

    def _leave(self, count: int, start_s: float) -> None:
        """Move the first words to the prompt, and the buffer's start to a time."""
        left, self.words = self.words[:count], self.words[count:]
        if self.options.condition_on_previous_text:
            self.prompt += [token for word in left for token in word.tokens]
            self.prompt = self.prompt[-self.decoder.prompt_tokens :]
        self.before += left
        self._cut(start_s)

    def _cut(self, start_s: float) -> None:
        self.audio.cut(start_s)
        self.changed_s = max(self.changed_s, self.audio.start_s)
        self.decoded = None

    def _segments(self, ended: bool = False) -> list[Segment]:
        """Return the segments of words before the buffer that have ended; ``ended``: all have."""
        segments = []
        while count := count_closed(self.before, ended):
            closed, self.before = self.before[:count], self.before[count:]
            segments.append(make_segment(closed, self.last))
        return segments
