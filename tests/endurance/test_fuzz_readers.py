"""A few hundred inputs of each reader, and the outcomes that are defects."""

import time
from unittest.mock import Mock

import fuzz_readers
import pytest
from cases import cases, combinations
from fuzz import judge as judge_module
from fuzz.judge import READ, DefectError, judge
from fuzz.reader import DEFECTS, MEGABYTE, Reader, committed_inputs, mapped_counts, read_counts
from fuzz.readers import READERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import full_length

from espnet_medusa.data.errors import InputError

CHECKS = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck]
)


@st.composite
def edited(draw, seeds: list[bytes], words: tuple[bytes, ...], max_bytes: int) -> bytes:
    """Draw a file with a few changes: bytes, words of the format, cuts, repeats."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.integers(0, 8))
        change = st.binary(max_size=8) | st.just(data[start : start + 64])
        data = data[:start] + draw(change | st.sampled_from([b"", *words])) + data[end:]
    return data[:max_bytes]


@pytest.mark.parametrize("count", [50, *full_length(150)])
@combinations(name=READERS)
def test_seeds_are_read_and_edited_seeds_reveal_no_defect(name, count):
    reader = READERS[name]
    seeds = reader.seeds()
    assert all(len(seed) <= reader.max_bytes for seed in seeds)
    assert {judge(reader, seed) for seed in seeds} == {READ}
    for data in committed_inputs(name):
        judge(reader, data)

    @settings(CHECKS, max_examples=count)
    @given(edited(seeds, reader.words, reader.max_bytes))
    def check(data: bytes) -> None:
        judge(reader, data)

    check()


def hides_greed(data: bytes) -> None:
    try:
        bytearray(900 * MEGABYTE)
    except MemoryError as error:
        raise InputError("x.pt: damaged; fetch it again") from error


def is_slow(data: bytes) -> None:
    started = time.process_time()
    while time.process_time() < started + 0.15:
        pass


@cases(
    (lambda data: {}[data], "KeyError"),
    (Mock(side_effect=AssertionError), "AssertionError"),
    (lambda data: bytearray(900 * MEGABYTE), "MemoryError"),
    (hides_greed, "requests more memory"),
    (is_slow, "takes more than 0.1 s"),
    (Mock(side_effect=InputError("x:\ndamaged")), "refusal of several lines"),
    (Mock(side_effect=InputError(" ")), "refusal that is empty or too long"),
)
def test_defects(read, place, monkeypatch):
    monkeypatch.setattr(judge_module, "SECONDS", 0.1)
    with pytest.raises(DefectError) as defect:
        judge(Reader(read, list), b"abc")
    assert defect.value.place.startswith(place)


def test_memory_that_the_file_justifies_is_no_defect(monkeypatch):
    monkeypatch.setattr(judge_module, "SECONDS", 60.0)  # page faults are slow if memory is scarce
    assert judge(Reader(lambda data: [bytearray(50 * len(data))], list), bytes(1 << 23)) == READ


def test_report_has_stored_counts_and_defects(tmp_path):
    folder = tmp_path / "trn"
    (folder / DEFECTS).mkdir(parents=True)
    mapped_counts(folder)[0] = 999_997, 600_000, 399_999
    mapped_counts(folder)["executions"] += 3
    (folder / DEFECTS / "KeyError_trn.py_12.bin").write_bytes(b"x")
    text = fuzz_readers.report([folder])
    assert "|trn|1,000,000|600,000|399,999|1|" in text and "- trn: KeyError_trn.py_12" in text


def test_command(tmp_path, capsys):
    pytest.importorskip("atheris")
    command = ["--readers", "trn", "--folder", tmp_path / "kept", "--report", tmp_path / "fuzz.md"]
    for executions in (300, 200, 500):  # continues, and never runs fewer
        fuzz_readers.main([*map(str, command), "--executions", str(executions)])
        total, refused, read = read_counts(tmp_path / "kept" / "trn")
        assert refused + read == total >= executions
    assert f"|trn|{total}|" in (tmp_path / "fuzz.md").read_text()
    assert "no defects" in capsys.readouterr().out
