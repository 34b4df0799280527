"""Words of a live transcription: which are confirmed, when they are spoken, and their segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, takewhile

from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.longform.long_form_options import APPENDED, PREPENDED
from espnet_medusa.inference.longform.segment import Segment, Word
from espnet_medusa.inference.longform.window import FRAMES_PER_S, WindowDecoding, compression_ratio
from espnet_medusa.inference.longform.word_times import SENTENCE_ENDS, TimedWord, merge_punctuation
from espnet_medusa.networks.whisper.transcript import BROKEN

GAP_S = 1.0  # a longer pause between two words ends a segment
LONGEST_S = 30.0  # maximum duration of a segment


@dataclass(frozen=True)
class LiveWord:
    """A word, or a punctuation mark, and its times in the stream."""

    text: str  # with the space before it, in languages with spaces
    tokens: tuple[int, ...]
    # Estimated until the word leaves the buffer, and then the decoder's attention decides.
    start_s: float
    end_s: float
    probability: float | None = None  # mean over its tokens; None: its times are estimated

    @property
    def is_mark(self) -> bool:
        """Whether it is punctuation, which belongs to the word before it."""
        return not any(map(str.isalnum, self.text))

    @property
    def is_timed(self) -> bool:
        return self.probability is not None


@dataclass(frozen=True)
class LiveUpdate:
    """The text of a stream after more audio."""

    confirmed: tuple[LiveWord, ...]  # new words, which never change
    tentative: tuple[LiveWord, ...]  # words after all confirmed ones, which may change
    segments: tuple[Segment, ...]  # those that have ended, of confirmed words; times are final
    start_s: float  # of the audio that was decoded
    audio_s: float  # all audio so far
    language: str | None  # code; None: the model has no languages, or nothing is decoded yet
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)

    @property
    def delay_s(self) -> float | None:
        """Time from the end of the last new word to its confirmation; None: there is none.

        It includes the seconds of computing the update.
        """
        if not self.confirmed:
            return None
        return self.audio_s - self.confirmed[-1].end_s + self.statistics.total_seconds


def agreed(hypotheses: Sequence[Sequence[LiveWord]]) -> int:
    """Return the number of words at the start that all hypotheses have.

    LocalAgreement: Liu et al. 2020; Machacek et al., arXiv 2307.14743.
    """
    texts = zip(*([word.text for word in words] for words in hypotheses), strict=False)
    return sum(1 for _ in takewhile(lambda row: len({*row}) == 1, texts))


def attended(words: Sequence[LiveWord], before_s: float) -> int:
    """Return the number of words at the start that end before a time, with their punctuation.

    AlignAtt: Papi et al., arXiv 2305.11408.
    """
    count = sum(1 for _ in takewhile(lambda word: word.end_s <= before_s, words))
    while 0 < count < len(words) and words[count].is_mark:
        count += 1
    return count


def whole(words: Sequence[LiveWord]) -> int:
    """Return the number of words before an incomplete character."""
    return sum(1 for _ in takewhile(lambda word: BROKEN not in word.text, words))


def spread(
    words: Sequence[tuple[str, Sequence[int]]], start_s: float, end_s: float
) -> tuple[LiveWord, ...]:
    """Give words estimated times between two times, by the lengths of their texts."""
    ends = [*accumulate((len(text) for text, _ in words), initial=0)]
    unit_s = max(end_s - start_s, 0.0) / max(ends[-1], 1)
    return tuple(
        LiveWord(text, tuple(tokens), start_s + unit_s * first, start_s + unit_s * last)
        for (text, tokens), first, last in zip(words, ends, ends[1:], strict=False)
    )


def with_times(
    words: Sequence[LiveWord], timed: Sequence[TimedWord], start_s: float
) -> tuple[LiveWord, ...]:
    """Give words the times of an alignment of the same tokens, which may be grouped otherwise.

    ``start_s``: start of the alignment's audio in the stream.
    """
    of_tokens = [one for one in timed for _ in range(one.tokens)]
    place, found = 0, []
    for word in words:
        members = of_tokens[place : place + len(word.tokens)]
        place += len(word.tokens)
        if members:
            times_s = (round(start_s + s, 2) for s in (members[0].start_s, members[-1].end_s))
            probability = sum(one.probability for one in members) / len(members)
            word = LiveWord(word.text, word.tokens, *times_s, probability)
        found.append(word)
    return tuple(found)


def choose_cut(words: Sequence[LiveWord], after_s: float, most_tokens: int) -> tuple[int, float]:
    """Return how many confirmed words leave a buffer, and the time of the cut.

    The cut is later than ``after_s``, if possible: after a sentence, else in the longest pause. The
    last word remains, as do at most ``most_tokens`` tokens; the rest is easier to decode then.
    """
    sizes = [*accumulate((len(word.tokens) for word in reversed(words)), initial=0)][::-1]
    places = [place for place in range(1, len(words)) if sizes[place] <= most_tokens]
    places = [place for place in places if not words[place].is_mark]
    if not places:
        all_leave = bool(words) and sizes[0] > most_tokens
        return (len(words), words[-1].end_s) if all_leave else (0, 0.0)
    places = [place for place in places if words[place - 1].end_s >= after_s] or places[-1:]

    def goodness(place: int) -> tuple[bool, float]:
        before, after = words[place - 1], words[place]
        ends_sentence = before.text.strip()[-1:] in {*SENTENCE_ENDS}
        return ends_sentence, after.start_s - before.end_s

    chosen = max(places, key=goodness)
    return chosen, (words[chosen - 1].end_s + words[chosen].start_s) / 2


def count_closed(words: Sequence[LiveWord], ended: bool) -> int:
    """Return the number of words of the first segment; 0: it goes on.

    A segment ends after a sentence, in a pause, or if it is long. ``ended``: no words follow.
    """
    for place in range(1, len(words)):
        before, word = words[place - 1], words[place]
        ends_sentence = before.text.strip()[-1:] in {*SENTENCE_ENDS} and word.text[:1].isspace()
        too_long = word.end_s - words[0].start_s > LONGEST_S
        if ends_sentence or too_long or word.start_s - before.end_s > GAP_S:
            return place
    return len(words) if ended else 0


def make_segment(words: Sequence[LiveWord], decoding: WindowDecoding) -> Segment:
    """Build the segment of words; the other values are those of the last update."""
    text = "".join(word.text for word in words)
    timed = [
        TimedWord(one.text, len(one.tokens), one.start_s, one.end_s, one.probability)
        for one in words
    ]
    merge_punctuation(timed, PREPENDED, APPENDED)
    start_s = words[0].start_s
    segment = Segment(
        round(start_s * FRAMES_PER_S), start_s, max(start_s, *(word.end_s for word in words)),
        text, tuple(token for word in words for token in word.tokens), **decoding.values,
    )  # fmt: skip
    whole_words = tuple(
        Word(one.text, one.start_s, one.end_s, one.probability) for one in timed if one.text
    )
    return replace(segment, compression_ratio=compression_ratio(text), words=whole_words)
