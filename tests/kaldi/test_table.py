import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_medusa.kaldi.table import DataError, read_table, scan_table, split_scp, write_table

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


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b"\n \n", "is empty"), (None, "No such file")]
)
def test_empty_and_missing_files_are_refused(tmp_path, content, message):
    path = tmp_path / "wav.scp"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_table(path)


def test_value_is_optional_on_request(tmp_path):
    path = tmp_path / "text"
    path.write_text("a\nb hello\n")
    assert read_table(path, require_value=False) == {"a": "", "b": "hello"}
    with pytest.raises(DataError, match="a: has no value"):
        read_table(path)


def test_harmless_defects_are_warnings(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfb  two   words \r\n\na\tone")
    assert read_table(path) == {"b": "two   words", "a": "one"}
    warnings = " | ".join(str(warning) for warning in scan_table(path).warnings)
    for defect in ("byte order mark", "CR LF", "no newline", "is blank", "out of byte order"):
        assert defect in warnings


def test_line_separators_of_unicode_do_not_end_lines(tmp_path):
    path = tmp_path / "text"
    path.write_text("a one\u2028two\n", encoding="utf-8")
    assert list(read_table(path)) == ["a"]


@pytest.mark.parametrize("entries", [{"a b": "x"}, {"": "x"}, {"a": "x\ny"}])
def test_entries_that_cannot_be_read_back_are_refused(tmp_path, entries):
    with pytest.raises(ValueError):
        write_table(tmp_path / "text", entries)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "text"
    write_table(path, {"a": "old"})

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        write_table(path, {"a": "new"})
    assert read_table(path) == {"a": "old"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["text"]


@given(n_keys=st.integers(1, 50), nj=st.integers(1, 60))
def test_parts_are_even_runs_that_join_to_the_whole(n_keys, nj):
    keys = list(range(n_keys))
    parts = split_scp(keys, nj)
    assert len(parts) == min(n_keys, nj)
    assert [key for part in parts for key in part] == keys
    lengths = [len(part) for part in parts]
    assert min(lengths) >= 1 and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("keys, nj", [([], 1), ([1], 0)])
def test_empty_splits_are_refused(keys, nj):
    with pytest.raises(ValueError):
        split_scp(keys, nj)
