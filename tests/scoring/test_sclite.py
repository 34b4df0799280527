"""Scores: counts, speakers, joining by id."""

import pytest
from refusals import refused

from espnet_medusa.scoring.sclite import Counts, score_trn, speaker_of


@pytest.fixture
def score(tmp_path):
    """Score two texts that are written to files."""

    def run(reference: str, hypothesis: str, **options):
        paths = tmp_path / "ref.trn", tmp_path / "hyp.trn"
        for path, text in zip(paths, (reference, hypothesis), strict=True):
            path.write_text(text, encoding="utf-8")
        return score_trn(*paths, **options)

    return run


def test_counts_and_rates(score):
    result = score("a b c d (x-1)\ne f (y-1)\n (y-2)\n", " (y-2)\nA x c (x-1)\ne f g (y-1)\n")
    operations = [(utterance.id, utterance.operations) for utterance in result.utterances]
    assert operations == [("y-2", ""), ("x-1", "CSCD"), ("y-1", "CCI")]
    assert result.speakers == {
        "y": Counts(correct=2, insertions=1, sentences=2, sentence_errors=1),
        "x": Counts(correct=2, substitutions=1, deletions=1, sentences=1, sentence_errors=1),
    }
    total = result.total
    assert (total.words, total.errors, total.sentences) == (6, 3, 3)
    assert (total.correct, total.substitutions, total.deletions, total.insertions) == (4, 1, 1, 1)
    assert total.error_percent == 50
    assert total.sentence_error_percent == pytest.approx(200 / 3)
    assert Counts().error_percent == 0


def test_case(score):
    texts = "A Über (s-1)\n", "a über (S-1)\n"
    # Only A to Z are folded.
    assert score(*texts).utterances[0].operations == "CS"
    with pytest.raises(ValueError, match="S-1"):
        score(*texts, case_sensitive=True)
    exact = score(texts[0], texts[1].lower(), case_sensitive=True)
    assert exact.utterances[0].operations == "SS"


def test_ids_that_differ_in_case_only_are_distinct(score):
    result = score("a (s-X)\nb (s-x)\n", "b (s-x)\na (s-X)\n")
    assert result.total == Counts(correct=2, sentences=2)


def test_words_are_parsed_as_in_sclite(score):
    result = score("a;b x* ** @ e\\f c\\;d (s-1)\n", "a x * ef c\\;d;tag @ (s-1)\n")
    assert result.utterances[0].operations == "CCCCC"


def test_characters(score):
    texts = "ab 東京 c (s-1)\n", "a 東b c* (s-1)\n"
    assert score(*texts, characters="all").utterances[0].reference == ("a", "b", "東", "京", "c")
    apart = score(*texts, characters="noascii")
    assert apart.utterances[0].hypothesis == ("a", "東", "b", "c")
    with pytest.raises(ValueError, match="noascii"):
        score(*texts, characters="some")


def test_missing_hypotheses_are_refused_or_count_as_deletions(score):
    reference = "".join(f"a b (s-{n:02d})\n" for n in range(30))
    with pytest.raises(ValueError) as caught:
        score(reference, "a b (s-03)\n")
    message = str(caught.value)
    assert "s-00, s-01, s-02, s-04" in message and "s-29" not in message
    assert "(29 in all)" in message and "--allow_missing true" in message
    result = score(reference, "a b (s-03)\n", allow_missing=True)
    assert result.total == Counts(correct=2, deletions=58, sentences=30, sentence_errors=29)
    assert len(result.missing) == 29
    assert result.utterances[0].id == "s-03"
    assert score(reference, "", allow_missing=True).total.deletions == 60


@pytest.mark.parametrize(
    ("reference", "hypothesis", "words"),
    [
        ("a (s-1)\n", "a (s-1)\nb (s-2)\n", ["hyp.trn", "s-2", "without a reference"]),
        ("a (s-1)\n", "a (s-1)\nb (s-1)\n", ["hyp.trn", "s-1"]),
        ("a (s-1)\na (s-1)\n", "a (s-1)\n", ["ref.trn", "s-1"]),
        ("a (s1)\n", "a (s1)\n", ["s1", "-i sp"]),
        ("", "", ["ref.trn", "no utterances"]),
        ("{a / b} (s-1)\n", "a (s-1)\n", ["ref.trn", "line 1", "s-1", "--sclite"]),
        ("a (s-1)\n", "c a{b (s-1)\n", ["hyp.trn", "line 1", "s-1", "a{b"]),
    ],
)
def test_wrong_input_is_refused(score, reference, hypothesis, words):
    with refused(*words):
        score(reference, hypothesis)


def test_speakers():
    assert speaker_of("ab_c-d_e", "rm") == "ab_c"
    assert speaker_of("ab_c_d", "spu_id") == "ab"
    assert speaker_of("ab-c-d", "swb") == "ab"
    assert speaker_of("4k0c0301", "wsj") == "4k0"
    assert speaker_of("x", "wsj") == "x)"
    assert speaker_of("a-b", "sp") == "(a-b)"
    with pytest.raises(ValueError, match="rm, spu_id"):
        speaker_of("a-b", "atis")
