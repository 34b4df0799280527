"""Draft texts of utterances and of long recordings: the same results in fewer decoder calls."""

import json
import random

import numpy as np
import pytest
import s2t_experiment as s2t
from cases import cases, combinations
from experiment import noise
from openai_whisper import openai_whisper, save_openai_whisper
from refusals import refuses
from scripted import edited

from espnet_medusa.inference.draft_text_files import read_draft_texts
from espnet_medusa.inference.longform.draft_text import TimedText, WindowDrafts, plain_text
from espnet_medusa.inference.longform.window import Clock, Window
from espnet_medusa.inference.s2t import S2TSpeech2Text
from espnet_medusa.inference.speech2text import Speech2Text

OPTIONS = {"search": "greedy", "language": "en"}


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper") / "whisper.pt"
    save_openai_whisper(openai_whisper(1, end=4.0, text_context=32), path)
    return str(path)


@pytest.fixture(scope="module")
def speech2text(whisper):
    return Speech2Text.from_pretrained(whisper, **OPTIONS)


def results_of(decodings):
    return [
        [(tokens, pytest.approx(float(hyp.score), abs=1e-4)) for _, _, tokens, hyp in one.results]
        for one in decodings
    ]


@combinations(beam_size=[1, 3])
def test_utterances_in_a_batch(whisper, beam_size):
    search = {"search": "greedy"} if beam_size == 1 else {"search": "beam", "ctc_weight": 0.0}
    if beam_size > 1:
        search["drafter"] = "text"
    model = Speech2Text.from_pretrained(whisper, **OPTIONS | search, beam_size=beam_size)
    speeches = [noise(seed) for seed in range(4)]
    before = model.decode(speeches)
    texts = [one.results[0][0] for one in before]
    words = texts[1].split()
    texts[1:] = [" ".join([*words[:2], "word", *words[3:]]), None, [(0.0, 1.0, texts[3])]]
    after = model.decode(speeches, draft_texts=texts)
    assert results_of(after) == results_of(before)
    calls = [[one.statistics.decoder_calls for one in some] for some in (before, after)]
    if beam_size == 1:
        assert calls[1][2] == calls[0][2], "no text, no drafts"
        assert sum(calls[1]) < 0.8 * sum(calls[0])


def decoded(model, samples, draft_text=None, **options):
    segments = [*model.transcribe(samples, draft_text=draft_text, **options)]
    return segments, model.statistics.decoder_calls


@combinations(form=["segments", "tuples", "plain", "edited", "other"])
def test_windows_of_a_long_recording(speech2text, form):
    samples = np.concatenate([noise(seed, 480000) for seed in range(3)])
    options = {"temperature_increment_on_fallback": None, "without_timestamps": False}
    options |= {"no_speech_threshold": None, "compression_ratio_threshold": None}
    before, calls = decoded(speech2text, samples, **options)
    text, rng = "".join(one.text for one in before), random.Random(1)
    draft = {
        "segments": before,
        "tuples": [(one.start_s, one.end_s, one.text) for one in before],
        "plain": text,
        "edited": " ".join(map(str, edited(text.split(), 3, 9, rng))),
        "other": "nothing of all this was said",
    }[form]
    after, fewer = decoded(speech2text, samples, draft, **options)
    for one, expected in zip(after, before, strict=True):
        assert (one.start_s, one.tokens) == (expected.start_s, expected.tokens)
    assert len(before) > 3
    if form != "other":
        assert fewer < (0.8 if form in ("segments", "tuples") else 1.0) * calls


class Letters:
    """Tokens are character codes."""

    def encode(self, text):
        return [ord(letter) for letter in text]


CLOCK = Clock(1000, 2)


@cases(
    (0, True, [1000, 97, 1100, 1150, 98, 1250]),
    (0, False, [97, 98]),
    (350, True, [1000, 98, 1075]),  # the larger half of b
    (600, True, [1450, 99, 1550]),
    (1600, True, []),
)
def test_the_segments_of_a_window(seek, timestamps, expected):
    drafts = [(0.0, 2.0, "a"), (3.0, 5.0, "b"), (15.0, 17.0, "c")]
    drafts = WindowDrafts([TimedText(*one) for one in drafts], Letters(), CLOCK, 9)
    assert drafts.part(Window(seek, 1000), timestamps) == expected


def test_a_plain_text_goes_on_after_each_window():
    drafts = WindowDrafts("abcdefghij", Letters(), CLOCK, 4)
    window = Window(0, 3000)
    parts = []
    for written in ("abx", "", "zzz", "efg", "ij"):
        parts.append("".join(map(chr, drafts.part(window, True))))
        drafts.written([*map(ord, written)])
    assert parts == ["abcd", "cdef", "cdef", "cdef", "hij"]
    assert drafts.part(window, True) == []


SRT = (
    "1\n00:00:01,000 --> 00:00:02,500\n<i>Hello</i>\nthere\n\n"
    "2\n00:00:03,000 --> 00:00:04,000\nRita\n"
)
VTT = (
    "WEBVTT\n\n00:01.000 --> 00:02.500 align:start\n<u>Hello</u> there\n\n"
    "00:02.000 --> 00:02.500\nHello <u>there</u>\n\n00:03.000 --> 00:04.000\nRita\n"
)
SEGMENTS = [
    {"start": 1.0, "end": 2.5, "text": " Hello there"},
    {"start": 3, "end": 4.0, "text": "Rita"},
]
TIMED = [(1.0, 2.5, "Hello there"), (3.0, 4.0, "Rita")]


@cases(
    ({"a.srt": SRT}, TIMED),
    ({"a.srt": SRT.replace("\n", "\r\n")}, TIMED),
    ({"a.vtt": VTT}, TIMED),
    ({"a.json": json.dumps({"text": " Hello there Rita", "segments": SEGMENTS})}, TIMED),
    ({"a.json": json.dumps(SEGMENTS)}, TIMED),
    ({"a.json": json.dumps({"file": "a.wav", "text": "Hello"})}, "Hello"),
    ({"a.txt": "Hello\nthere\n"}, "Hello there"),
    ({"a.txt": "other", "a.srt": SRT, "text": "a nothing\n"}, TIMED),
    ({"text": "a Hello there\nb no\n"}, "Hello there"),
    ({"text": "a\n"}, ""),
    ({"1best_recog/text": "a Hello there\n"}, "Hello there"),
    (
        {
            "text": "a Hello there Rita\n",
            "segments/segments": "a_1 a 1.00 2.50\na_2 a 3.00 4.00\n",
            "segments/text": "a_1 Hello there\na_2 Rita\n",
        },
        TIMED,
    ),
)
def test_folders_of_earlier_results(files, expected, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, newline="")
    names = {"key": ["a", "A"], "without": ["c"]}
    found = read_draft_texts(tmp_path, names)
    assert [*found] == ["key"]
    if isinstance(expected, str):
        assert found["key"] == expected
    else:
        assert [(a, b, text.strip()) for a, b, text in found["key"]] == expected
        assert plain_text(found["key"]) == "Hello there Rita"
    [first, *others] = files
    if not others and "/" not in first:
        assert read_draft_texts(tmp_path / first, {"key": ["a"]}) == found


@refuses(
    ("a.json", "{", "is not JSON"),
    ("a.json", "[" * 100000, "is not JSON"),
    ("a.json", '{"segments": [{"text": 1}]}', 'an object with "segments"'),
    ("a.json", '[{"start": NaN, "end": 1, "text": ""}]', "an object with"),
    ("a.srt", "Hello", "has no cues"),
    ("text", "b Hello\n", "has no text of a; allowed: a folder of results, a Kaldi table"),
    ("nothing", None, "does not exist"),
)
def test_unreadable_texts(name, content, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    read_draft_texts(tmp_path / name, {"key": ["a"]})


@refuses(
    ("model", ["a"], "not used by drafter: model; allowed: text, text[+]heads"),
    (None, ["a", "b"], "draft_texts: 2; allowed: 1, one each"),
)
def test_unusable_draft_texts(drafter, texts, whisper):
    options = {} if drafter is None else {"drafter": drafter, "draft_model": whisper}
    Speech2Text.from_pretrained(whisper, **OPTIONS, **options).decode([noise(0)], draft_texts=texts)


def test_owsm(tmp_path):
    files = s2t.make_s2t_experiment(tmp_path, 3)
    options = {"beam_size": 2, "ctc_weight": 0.3, "maxlenratio": -12}
    assert not S2TSpeech2Text(**files, **options).check_draft_texts(), "unused by default"
    model = S2TSpeech2Text(**files, **options, drafter="text")
    speeches = [noise(0), noise(1), noise(2)]
    before = model.decode(speeches)
    texts = [before[0].results[0][0], None, before[2].results[0][3]]
    after = model.decode(speeches, draft_texts=texts)
    assert results_of_s2t(after) == results_of_s2t(before)
    calls = [[one.statistics.decoder_calls for one in some] for some in (before, after)]
    assert calls[1][1] == calls[0][1] and sum(calls[1]) < sum(calls[0])


def results_of_s2t(decodings):
    return [
        [(one[2], pytest.approx(float(one[-1].score), abs=1e-4)) for one in decoding.results]
        for decoding in decodings
    ]
