"""Layout of subtitles, against openai-whisper's writers, and times within the audio."""

import io
import itertools
import random
import re

import pytest
from cases import cases, combinations
from decoded_segments import as_openai_has_them
from refusals import assert_refused
from whisper.utils import WriteSRT, WriteVTT

from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.journal import Decoded, NBestEntry
from espnet_medusa.inference.longform.segment import Segment, Word, clamp_segments
from espnet_medusa.transcription.formats import FORMATS, Transcript
from espnet_medusa.transcription.recordings import Recording
from espnet_medusa.transcription.subtitles import SubtitleOptions, as_subtitles

NUMBERS = (0.0, -0.5, 1.2, 0.1)
WRITERS = {"srt": WriteSRT(""), "vtt": WriteVTT("")}
ENGLISH = [" So", " it", "'s", " over,", " extraordinary", " -", " isn't", " it?", " I"]
CHINESE = ["那", "是", "一", "个", "问", "题。", "对", "吗？"]


def segment(start_s, end_s, text, words=()):
    return Segment(0, start_s, end_s, text, (1,), *NUMBERS, tuple(words))


def spoken(texts, start_s=0.0, step_s=0.5):
    """A segment whose words last as long as their steps."""
    times = [start_s + number * step_s for number in range(len(texts) + 1)]
    words = [
        Word(text, start, end, 0.5)
        for text, start, end in zip(texts, times, times[1:], strict=False)
    ]
    return segment(times[0], times[-1], "".join(texts), words)


def random_segments(rng, texts):
    found, now_s = [], rng.choice([0.0, 3590.0])
    for _ in range(rng.randint(1, 5)):
        found.append(spoken(rng.choices(texts, k=rng.randint(1, 9)), now_s))
        now_s = found[-1].end_s + rng.choice([0.0, 0.2, 5.0])
    return found


@combinations(texts=[ENGLISH, CHINESE], seed=range(4))
def test_layouts_equal_openai_whispers(texts, seed):
    rng = random.Random(seed)
    for width, count, most, highlight in itertools.product(
        [None, 8, 20], [None, 1, 2], [None, 1, 3], [False, True]
    ):
        segments = random_segments(rng, texts)
        # A longer word, which openai-whisper does not split, is tested below.
        options = {
            "max_line_width": width, "max_line_count": count, "max_words_per_line": most,
            "highlight_words": highlight,
        }  # fmt: skip
        for name, writer in WRITERS.items():
            stream = io.StringIO()
            writer.write_result({"segments": as_openai_has_them(segments)}, stream, options)
            language = "zh" if texts is CHINESE else "en"
            found = as_subtitles(name, segments, language, SubtitleOptions(**options))
            assert found == stream.getvalue(), options


def cues(text):
    """Return times and texts of srt or vtt."""
    return re.findall(r"([\d:,.]+) --> ([\d:,.]+)\n(.*?)\n\n", text, re.DOTALL)


@cases(
    (["我们今天讨论一个很重要的问题。你好吗？"], None, 6),
    (["今日は、とても「良い」天気ですね。"], "ja", 6),
    (["สวัสดีครับยินดีต้อนรับ"], "th", 8),
    (["我", "用", " Py", "thon", "写", "程序"], "zh", 8),
    ([" Donaudampfschifffahrt", " auf"], "de", 8),
)
def test_texts_without_spaces_are_broken_between_characters(texts, language, width):
    """Also a whole sentence as one word, but not within a word of letters."""
    one = spoken(texts)
    options = SubtitleOptions(max_line_width=width, max_line_count=1)
    found = cues(as_subtitles("srt", [one], language, options))
    lines = [text for _, _, text in found]
    assert "".join(lines).replace(" ", "") == one.text.replace(" ", "")
    assert len(lines) > 1 and not any(line[0] in "。？、」" for line in lines)
    longest = max(map(len, lines))
    assert longest <= width + 1 or language == "de"
    assert "Python" not in one.text or any("Python" in line for line in lines)
    assert [start for start, *_ in found] == sorted({start for start, *_ in found})
    assert found[0][0] == "00:00:00,000" and all(start < end for start, end, _ in found)


def test_markup_line_breaks_and_arrows_are_escaped():
    """In vtt "&" and "<" begin markup; an empty line and an arrow end a cue."""
    text = " R&D <b>1 < 2</b>\n\nso --> there"
    one = segment(0.0, 2.0, text)
    vtt, srt = (as_subtitles(name, [one]) for name in ("vtt", "srt"))
    assert cues(vtt) == [("00:00.000", "00:02.000", "R&amp;D &lt;b>1 &lt; 2&lt;/b> so -> there")]
    assert cues(srt) == [("00:00:00,000", "00:00:02,000", "R&D <b>1 < 2</b> so -> there")]
    talk = Transcript(Recording("a.wav", "a"), text, "en", segments=(one,))
    assert FORMATS["txt"](talk) == "R&D <b>1 < 2</b> so --> there\n"
    assert FORMATS["tsv"](talk).splitlines()[1:] == ["0\t2000\tR&D <b>1 < 2</b> so --> there"]
    words = spoken([" R", "&", "D", " <b>", " --", ">\n"])
    underlined = as_subtitles("vtt", [words], "en", SubtitleOptions(highlight_words=True))
    texts = [text for _, _, text in cues(underlined)]
    assert len(texts) == 6
    assert texts[1].startswith("R<u>&amp;</u>D &lt;b>")
    assert not any("-->" in text or text.count("<") != 2 for text in texts)


def test_a_segment_without_words_keeps_its_cue():
    """openai-whisper drops its text if other segments have words."""
    segments = [spoken([" So", " it"]), segment(1.0, 2.0, " goes."), spoken([" Yes."], 2.0)]
    for options in (SubtitleOptions(), SubtitleOptions(max_line_width=20, max_line_count=2)):
        found = cues(as_subtitles("vtt", segments, "en", options))
        assert found[1] == ("00:01.000", "00:02.000", "goes.") and len(found) == 3


def test_unusable_layouts_are_refused():
    assert_refused("max_line_width: 0 is too small", SubtitleOptions, max_line_width=0)
    check = SubtitleOptions(highlight_words=True).check_usable
    assert_refused("highlight_words: True; allowed with word_timestamps: true", check, False)
    check(True)
    SubtitleOptions().check_usable(False)
    assert SubtitleOptions(max_line_count=2).unused.startswith("max_line_count")
    assert SubtitleOptions(max_words_per_line=2, max_line_width=9).unused.startswith("max_words")
    assert SubtitleOptions(max_line_count=2, max_line_width=9).unused is None


@pytest.mark.parametrize("with_words", [False, True])
def test_no_time_is_after_the_end_of_the_audio(tmp_path, with_words):
    segments = [spoken([" So", " it", " goes."], 0.5), spoken([" Yes,", " it"], 2.8, 2.1)]
    segments.append(spoken([" does."], 12.0))
    if not with_words:
        segments = [segment(one.start_s, one.end_s, one.text) for one in segments]
    counted = DecodingStatistics(audio_seconds=3.058)
    decoded = Decoded("a", [NBestEntry(" So", [], [], "0")], counted, "en", tuple(segments))
    talk = Transcript.of(Recording(tmp_path / "a.wav", "a"), decoded)
    assert [one.text for one in talk.segments] == [one.text for one in segments]
    for name in ("srt", "vtt"):
        found = cues(FORMATS[name](talk))
        assert len(found) == 3 and all(start < end for start, end, _ in found)
        assert max(end.replace(",", ".")[-6:] for _, end, _ in found) == "03.050"
    for one in talk.segments:
        assert 0 <= one.start_s < one.end_s <= 3.05
        assert all(0 <= word.start_s <= word.end_s <= 3.05 for word in one.words)
    assert talk.segments[0] == segments[0]
    rows = [line.split("\t") for line in FORMATS["tsv"](talk).splitlines()[1:]]
    assert max(int(end) for _, end, _ in rows) == 3050
    for line in FORMATS["stm"](talk).splitlines():
        assert float(line.split()[4]) <= 3.05
    for line in FORMATS["ctm"](talk).splitlines():
        assert sum(map(float, line.split()[2:4])) <= 3.05 + 1e-9


def test_a_text_after_the_end_shares_the_time_before_it():
    segments = [segment(0.0, 1.0, " a"), segment(5.0, 7.0, " b"), segment(7.0, 9.0, " c")]
    times = [(one.start_s, one.end_s) for one in clamp_segments(segments, 3.0)]
    assert times == [(0.0, 1.0), (1.0, 3.0), (1.0, 3.0)]
