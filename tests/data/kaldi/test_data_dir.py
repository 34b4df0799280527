"""Tables, and checks and repairs of data directories."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from cases import cases
from downloads import tree
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_refused, command_refused
from tones import edit

from espnet_medusa.bin import stage
from espnet_medusa.data.kaldi.data_dir import validate_data_dir
from espnet_medusa.data.kaldi.table import DataError, read_table, scan_table, split_scp, write_table
from espnet_medusa.recipes.kaldi.fix import fix_data_dir

FIRST, SECOND = "s0-u000", "s0-u002"
WORDS = st.text(st.characters(blacklist_categories=["Z", "C"]), min_size=1, max_size=5)


@settings(max_examples=50, deadline=None)
@given(entries=st.dictionaries(WORDS, st.lists(WORDS, max_size=3).map(" ".join), min_size=1))
def test_write_then_read_gives_the_entries_in_byte_order(tmp_path_factory, entries):
    path = tmp_path_factory.mktemp("table") / "text"
    write_table(path, entries)
    assert read_table(path, require_value=False) == entries
    raw_ids = [line.split(b" ")[0] for line in path.read_bytes().splitlines()]
    assert raw_ids == sorted(raw_ids)
    assert path.read_bytes().endswith(b"\n")
    assert scan_table(path, require_value=False).warnings == []


def test_every_problem_has_its_own_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a one\nb\na two\nc gr\xfc\xdf\n\xff\xfe x\nd ok\n")
    with pytest.raises(DataError) as caught:
        read_table(path)
    lines = str(caught.value).split("\n")
    assert [problem.id for problem in caught.value.problems] == ["b", "a", "c", "line 5"]
    assert len(lines) == 4 and all(line.startswith(f"{path}: ") for line in lines)
    assert "line 4 is not UTF-8 (byte 0xfc at column 5)" in lines[2]
    assert "line 3" in lines[1]


def test_empty_and_unreadable_files_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "wav.scp"
    assert_refused("No such file.*; create the file", read_table, path, error=DataError)
    assert_refused("directory.*; give a file", read_table, tmp_path, error=DataError)
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=PermissionError(13, "denied")))
    assert_refused("denied.*; change its permissions", read_table, path, error=DataError)
    monkeypatch.undo()
    for content in (b"", b"\n \n"):
        path.write_bytes(content)
        assert_refused("is empty", read_table, path, error=DataError)


def test_harmless_defects_are_warnings(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfb  two   words \r\n\na\tone")
    assert read_table(path) == {"b": "two   words", "a": "one"}
    warnings = " | ".join(str(warning) for warning in scan_table(path).warnings)
    for defect in ("byte order mark", "CR LF", "no newline", "is blank", "out of byte order"):
        assert defect in warnings
    path.write_text("a one\u2028two\n", encoding="utf-8")
    assert list(read_table(path)) == ["a"], "only a newline ends a line"


@pytest.mark.parametrize("entries", [{"a b": "x"}, {"": "x"}, {"a": "x\ny"}])
def test_entries_that_cannot_be_read_back_are_refused(tmp_path, entries):
    with pytest.raises(ValueError):
        write_table(tmp_path / "text", entries)
    assert list(tmp_path.iterdir()) == []


@given(n_keys=st.integers(1, 50), nj=st.integers(1, 60))
def test_parts_are_even_runs_that_join_to_the_whole(n_keys, nj):
    keys = list(range(n_keys))
    parts = split_scp(keys, nj)
    assert len(parts) == min(n_keys, nj)
    assert [key for part in parts for key in part] == keys
    lengths = [len(part) for part in parts]
    assert min(lengths) >= 1 and max(lengths) - min(lengths) <= 1
    for empty in (([], nj), (keys, 0)):
        with pytest.raises(ValueError):
            split_scp(*empty)


def drop_line(key):
    return lambda text: "".join(line for line in text.splitlines(True) if key not in line)


def reverse_lines(text):
    return "".join(reversed(text.splitlines(True)))


@cases(
    ("text", drop_line(FIRST), FIRST, "is missing (it is in wav.scp)"),
    ("utt2spk", drop_line(FIRST), FIRST, "is missing (it is in wav.scp)"),
    ("wav.scp", drop_line(FIRST), FIRST, "is not in wav.scp"),
    ("text", lambda text: text + "zz new\n", "zz", "is not in wav.scp"),
    ("text", lambda text: text.replace("word 0", ""), FIRST, "has no value"),
    ("text", lambda text: text.replace("word 0", "a </s>"), FIRST, "reserved symbols: </s>"),
    ("text", lambda text: text.replace("word 0", "<|endoftext|>"), FIRST, "reserved"),
    ("text", lambda text: text + text.splitlines(True)[0], FIRST, "occurs again in line 5"),
    ("text", lambda text: text[:-1], "", "no newline"),
    ("text", lambda text: "", "", "is empty"),
    ("wav.scp", reverse_lines, "s1-u001", "out of byte order"),
    ("wav.scp", lambda text: text.replace(f"{FIRST}.wav", "no.wav"), FIRST, "no readable file"),
    ("wav.scp", lambda text: text.replace("wav\n", "wav |\n", 1), FIRST, "is a command"),
    ("wav.scp", lambda text: text.replace(" /", " ~/", 1), FIRST, "'~' is not expanded"),
    ("utt2spk", lambda text: text.replace("s0\n", "s0 s1\n", 1), FIRST, "more than one word"),
    ("text", lambda text: text.replace("word 0", "word\r0"), FIRST, "a carriage return"),
    ("spk2utt", lambda text: text.replace(f" {FIRST}", ""), "s0", "disagrees with utt2spk"),
    ("spk2utt", drop_line("s1 "), "s1", "disagrees with utt2spk"),
)
def test_each_defect_is_reported(table, change, key, message, folder):
    edit(folder / table, change)
    problems = validate_data_dir(folder)
    assert any(problem.id == key and message in problem.message for problem in problems), problems
    for problem in problems:
        assert problem.remedy and "\n" not in str(problem)
        assert str(problem).startswith(str(folder))


def rename_speaker(folder):
    write_table(folder / "utt2spk", read_table(folder / "utt2spk") | {FIRST: "z"})
    fix_data_dir(folder)


@cases(
    (rename_speaker, "make the speaker a prefix", "--speaker_order"),
    (lambda folder: (folder / "text").unlink(), "data/text", "--require_text"),
)
def test_some_checks_can_be_switched_off(change, message, option, folder, capsys):
    change(folder)
    with command_refused(capsys, message):
        stage.main(["validate_data_dir", str(folder)])
    stage.main(["validate_data_dir", str(folder), option, "false"])


@cases(
    ("rec 0.5 0.5", "not after its start"), ("rec 0.5", "has 3 fields"), ("rec a b", "no numbers"),
    ("rec 0 nan", "impossible"), ("rec -1 1", "impossible"),
    ("other 0 1", "recording other is not in wav.scp"),
)  # fmt: skip
def test_segments_are_checked(value, message, make_data_dir):
    folder = make_data_dir(1)
    path = read_table(folder / "wav.scp")[FIRST]
    write_table(folder / "wav.scp", {"rec": path, "unused": path})
    write_table(folder / "segments", {FIRST: value})
    messages = {problem.id: problem.message for problem in validate_data_dir(folder)}
    assert message in messages[FIRST]
    assert "no segment uses" in messages["unused"]
    write_table(folder / "wav.scp", {"rec": path})
    write_table(folder / "segments", {FIRST: "rec 0.05 -1"})
    assert validate_data_dir(folder) == []


def test_fix_keeps_the_intersection_and_reports_the_rest(make_data_dir):
    folder = make_data_dir(6)
    edit(folder / "text", lambda text: text.replace("word 0", "") + "lost words\n")
    edit(folder / "wav.scp", reverse_lines)
    edit(folder / "utt2spk", lambda text: text + f"{SECOND} other\ns1-u001 s1\n")
    edit(folder / "utt2spk", lambda text: text.replace("s1-u005 s1", "s1-u005 s1 b"))
    edit(folder / "text", lambda text: text.replace("word 4", "word\r4"))
    (folder / "spk2utt").unlink()
    assert "s1-u005" in {problem.id for problem in validate_data_dir(folder)}
    for name in ("utt2lang", "utt2regulation"):
        write_table(folder / name, {FIRST: "a", "s1-u001": "b"})
        edit(folder / name, reverse_lines)
    report = fix_data_dir(folder)
    for name in ("utt2lang", "utt2regulation"):
        assert read_table(folder / name) == {"s1-u001": "b"}
    assert validate_data_dir(folder) == []
    assert {problem.id for problem in report.dropped} == {
        FIRST, SECOND, "s0-u004", "s1-u005", "lost",
    }  # fmt: skip
    assert report.n_kept == 2 == len(read_table(folder / "wav.scp"))
    assert report.generated == ["spk2utt"]
    assert read_table(folder / "spk2utt")["s1"] == "s1-u001 s1-u003"
    assert "lost" in (folder / ".backup" / "text").read_text()
    for name in ("utt2spk", "spk2utt"):
        (folder / name).unlink()
    assert fix_data_dir(folder).generated == ["utt2spk", "spk2utt"]
    assert read_table(folder / "utt2spk")["s1-u001"] == "s1-u001", "each is a speaker"
    assert validate_data_dir(folder) == []


def test_fix_drops_recordings_without_segments(make_data_dir):
    folder = make_data_dir(2)
    path = read_table(folder / "wav.scp")[FIRST]
    write_table(folder / "wav.scp", {"rec": path, "unused": path})
    write_table(folder / "segments", {FIRST: "rec 0 0.1", "s1-u001": "rec 0.2 0.1"})
    report = fix_data_dir(folder)
    assert list(read_table(folder / "wav.scp")) == ["rec"]
    assert {problem.id for problem in report.dropped} == {"s1-u001", "unused"}
    assert validate_data_dir(folder) == []


def test_fix_repairs_optional_tables_and_removes_those_without_a_good_line(make_data_dir):
    folder = make_data_dir(2)
    (folder / "utt2uniq").write_text(f"{FIRST} a\n{FIRST} b\ns1-u001 c\n")
    for name in ("utt2dur", "utt2lang"):
        write_table(folder / name, {"lost": "1"})
    report = fix_data_dir(folder)
    assert read_table(folder / "utt2uniq") == {"s1-u001": "c"}
    assert [str(problem) for problem in report.dropped] == [
        f"{folder / 'utt2uniq'}: {FIRST}: has several lines that differ; dropped"
    ]
    assert not (folder / "utt2dur").exists() and not (folder / "utt2lang").exists()
    assert read_table(folder / ".backup" / "utt2lang") == {"lost": "1"}
    assert validate_data_dir(folder) == []


def test_fix_removes_durations_unless_each_utterance_has_one(make_data_dir):
    folder, durations = make_data_dir(2), {FIRST: "0.1", "s1-u001": "0.1"}
    for written, kept in ((durations, True), ({FIRST: "0.1"}, False)):
        write_table(folder / "utt2dur", written)
        fix_data_dir(folder)
        assert validate_data_dir(folder) == []
        assert (folder / "utt2dur").exists() == kept


def test_fix_changes_nothing_when_nothing_would_be_left(folder):
    edit(folder / "text", lambda text: text.replace("s", "x"))
    before = tree(folder)
    assert_refused("no utterance is in all", fix_data_dir, folder, error=DataError)
    assert before == tree(folder)


def test_command_prints_all_problems_and_fixes_them_with_an_option(folder, capsys):
    edit(folder / "text", lambda text: text.replace("word 0", "").replace("word 2", ""))
    with command_refused(capsys, f"{FIRST}: has no value", f"{SECOND}: has no value"):
        stage.main(["validate_data_dir", str(folder)])
    stage.main(["validate_data_dir", str(folder), "--fix", "true"])
    printed = capsys.readouterr()
    assert f"{FIRST}: has no value; dropped" in printed.out
    assert "kept 2 utterances" in printed.err
