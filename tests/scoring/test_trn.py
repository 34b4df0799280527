"""Reading and writing trn files."""

import pytest
from refusals import refused

from espnet_medusa.scoring.trn import list_some, read_trn, write_trn

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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a (s-1)\nb c\n", ["line 2", "b c", "add the id"]),
        (b"a (s-1)\nb c ()\n", ["line 2"]),
        (b"hello (very nice)\n", ["line 1"]),
        (b"a (s-1) b\n", ["line 1"]),
        (b"a ) b (\n", ["line 1"]),
        (b"a\0 (s-1)\n", ["line 1", "NUL"]),
        (b"a (s-1)\n\xff (s-2)\n", ["line 2", "UTF-8", "0xff"]),
        (b"a (s-1)\nb (s-2)\nc (s-1)\n", ["s-1 (lines 1 and 3)", "keep one"]),
    ],
)
def test_unreadable_files_are_refused_in_one_line(tmp_path, content, words):
    path = tmp_path / "bad.trn"
    path.write_bytes(content)
    with refused(path, *words):
        read_trn(path)


@pytest.mark.parametrize(
    ("utterances", "words"),
    [
        ({"nobody": ["a"]}, ["nobody", "utt2spk"]),
        ({"spk-u1": ["a b"]}, ["spk-u1", "'a b'"]),
        ({"spk-u1": [""]}, ["spk-u1"]),
        ({"spk (1)": ["a"]}, ["spk (1)", "parentheses"]),
    ],
)
def test_entries_that_the_format_cannot_represent_are_refused(tmp_path, utterances, words):
    path = tmp_path / "out.trn"
    with refused(path, *words):
        write_trn(path, utterances, UTT2SPK | {"spk (1)": "spk"})
    assert not path.exists()


def test_long_lists_are_counted():
    assert list_some(["a", "b"]) == "a, b"
    assert list_some([str(n) for n in range(25)], limit=3) == "0, 1, 2, ... (25 in all)"
