"""Trn files and scores: counts, speakers, joining by id."""

import pytest
from cases import cases
from refusals import assert_refused, refused

from espnet_medusa.recipes.scoring.sclite import Counts, score_trn, speaker_of
from espnet_medusa.recipes.scoring.trn import read_trn, write_trn


@pytest.fixture
def score(tmp_path):
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
    assert_refused("S-1", score, *texts, case_sensitive=True, error=ValueError)
    # Ids that differ in case only are distinct.
    assert score("a (s-X)\nb (s-x)\n", "b (s-x)\na (s-X)\n").total == Counts(correct=2, sentences=2)


def test_missing_hypotheses_are_refused_or_count_as_deletions(score):
    reference = "".join(f"a b (s-{n:02d})\n" for n in range(30))
    with refused("s-00, s-01, s-02, s-04", "(29 in all)", "--allow_missing true") as caught:
        score(reference, "a b (s-03)\n")
    assert "s-29" not in str(caught.value)
    result = score(reference, "a b (s-03)\n", allow_missing=True)
    assert result.total == Counts(correct=2, deletions=58, sentences=30, sentence_errors=29)
    assert result.utterances[0].id == "s-03"
    assert score(reference, "", allow_missing=True).total.deletions == 60


@cases(
    ("a (s-1)\n", "a (s-1)\nb (s-2)\n", ["hyp.trn", "s-2", "without a reference"]),
    ("a (s-1)\n", "a (s-1)\nb (s-1)\n", ["hyp.trn", "s-1"]),
    ("a (s-1)\na (s-1)\n", "a (s-1)\n", ["ref.trn", "s-1"]),
    ("a (s1)\n", "a (s1)\n", ["s1", "-i sp"]),
    ("", "", ["ref.trn", "no utterances"]),
)
def test_wrong_input_is_refused(reference, hypothesis, words, score):
    with refused(*words):
        score(reference, hypothesis)


def test_braces_are_characters_of_their_words(score):
    result = score("M^{ME} { a / b } (s-1)\nc (s-2)\n", "m^{me} a (s-1)\nc (s-2)\n")
    assert [one.operations for one in result.utterances] == ["CDCDDD", "C"]
    assert result.with_braces == ("s-1",)


def test_speakers_and_unknown_modes(score):
    assert speaker_of("ab_c-d_e", "rm") == "ab_c"
    assert speaker_of("ab_c_d", "spu_id") == speaker_of("ab-c-d", "swb") == "ab"
    assert speaker_of("4k0c0301", "wsj") == "4k0"
    assert speaker_of("x", "wsj") == "x)"
    assert speaker_of("a-b", "sp") == "(a-b)"
    assert_refused("atis.*rm, spu_id", speaker_of, "a-b", "atis", error=ValueError)
    texts = "a (s-1)\n", "a (s-1)\n"
    assert_refused("some.*noascii", score, *texts, characters="some", error=ValueError)


UTT2SPK = {"spk-u1": "spk", "spk-u2": "spk", "é-u3": "é"}


def test_round_trip_keeps_ids_tokens_and_order(tmp_path):
    utterances = {"spk-u2": ["b", "(", ")", "ü\u00a0x"], "spk-u1": [], "é-u3": [";;", "**"]}
    path = tmp_path / "new" / "ref.trn"
    write_trn(path, utterances, UTT2SPK)
    lines = read_trn(path)
    assert [line.id for line in lines] == ["spk-spk-u2", "spk-spk-u1", "é-é-u3"]
    assert [list(line.tokens) for line in lines] == list(utterances.values())
    assert path.read_bytes().startswith("b ( ) ü\u00a0x\t(spk-spk-u2)\n".encode())


def test_comments_blank_lines_and_line_ends(tmp_path):
    path = tmp_path / "x.trn"
    path.write_bytes(b";; note (a-0)\n\n \t\na b (a-1)\r\n** more (a-2)\nc\td (a-3)")
    lines = [(line.id, line.tokens, line.line_number) for line in read_trn(path)]
    assert lines == [("a-1", ("a", "b"), 4), ("a-3", ("c", "d"), 6)]


@cases(
    (b"a (s-1)\nb c\n", ["line 2", "b c", "add the id"]),
    (b"a (s-1)\nb c ()\n", ["line 2"]),
    (b"hello (very nice)\n", ["line 1"]),
    (b"a (s-1) b\n", ["line 1"]),
    (b"a ) b (\n", ["line 1"]),
    (b"a\0 (s-1)\n", ["line 1", "NUL"]),
    (b"a (s-1)\n\xff (s-2)\n", ["line 2", "UTF-8", "0xff"]),
    (b"a (s-1)\nb (s-2)\nc (s-1)\n", ["s-1 (lines 1 and 3)", "keep one"]),
)
def test_unreadable_files_are_refused_in_one_line(content, words, tmp_path):
    path = tmp_path / "bad.trn"
    path.write_bytes(content)
    with refused(path, *words):
        read_trn(path)


@cases(
    ({"nobody": ["a"]}, ["nobody", "utt2spk"]),
    ({"spk-u1": ["a b"]}, ["spk-u1", "'a b'"]),
    ({"spk-u1": [""]}, ["spk-u1"]),
    ({"spk (1)": ["a"]}, ["spk (1)", "parentheses"]),
)
def test_entries_that_the_format_cannot_represent_are_refused(utterances, words, tmp_path):
    path = tmp_path / "out.trn"
    with refused(path, *words):
        write_trn(path, utterances, UTT2SPK | {"spk (1)": "spk"})
    assert not path.exists()
