"""A few hundred inputs of each reader, and what the judge of millions takes for a defect."""

import time

import fuzz_readers
import pytest
from fuzz import judge as judge_module
from fuzz.folder import COUNTS, DEFECTS, CachedCounts, Counts, read_counts, read_regression_inputs
from fuzz.judge import DefectError, Outcome, judge
from fuzz.reader import MEGABYTE, Reader
from fuzz.readers import READERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espnet_medusa.errors import InputError


@st.composite
def edited(draw, seeds: list[bytes], words: tuple[bytes, ...], max_bytes: int) -> bytes:
    """A file with a few places changed: bytes, words of the format, cuts, repeats."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.integers(0, 8))
        change = st.binary(max_size=8) | st.just(data[start : start + 64])
        data = data[:start] + draw(change | st.sampled_from([b"", *words])) + data[end:]
    return data[:max_bytes]


def test_every_reader_has_a_name_that_the_command_knows():
    assert sorted(READERS) == [*fuzz_readers.NAMES]


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_read_and_neither_they_nor_what_is_made_of_them_find_a_defect(name):
    reader = READERS[name]
    seeds = reader.seeds()
    assert all(len(seed) <= reader.max_bytes for seed in seeds)
    assert {judge(reader, seed) for seed in seeds} == {Outcome.READ}
    for data in read_regression_inputs(name):
        judge(reader, data)

    @settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(edited(seeds, reader.words, reader.max_bytes))
    def check(data: bytes) -> None:
        judge(reader, data)

    check()


def crashes(data: bytes) -> None:
    {}[data]


def is_wrong(data: bytes) -> None:
    assert data == b""


def is_greedy(data: bytes) -> None:
    bytearray(900 * MEGABYTE)


def hides_greed(data: bytes) -> None:
    try:
        is_greedy(data)
    except MemoryError as error:
        raise InputError("x.pt: damaged; fetch it again") from error


def is_slow(data: bytes) -> None:
    started = time.process_time()
    while time.process_time() < started + 0.15:
        pass


def refuses_in_two_lines(data: bytes) -> None:
    raise InputError("x:\ndamaged")


def refuses_in_silence(data: bytes) -> None:
    raise InputError(" ")


@pytest.mark.parametrize(
    ("read", "place"),
    [
        (crashes, "KeyError"),
        (is_wrong, "AssertionError"),
        (is_greedy, "MemoryError"),
        (hides_greed, "asks for more memory"),
        (is_slow, "takes more than 0.1 s"),
        (refuses_in_two_lines, "refusal of several lines"),
        (refuses_in_silence, "refusal that nobody reads"),
    ],
)
def test_what_is_a_defect(read, place, monkeypatch):
    monkeypatch.setattr(judge_module, "SECONDS", 0.1)
    with pytest.raises(DefectError) as defect:
        judge(Reader("x", read, list), b"abc")
    assert defect.value.place.startswith(place)


def test_memory_that_the_file_justifies_is_none():
    reader = Reader("x", lambda data: bytearray(50 * len(data)) and None, list)
    assert judge(reader, bytes(8 * MEGABYTE)) is Outcome.READ


def test_counts_go_on_where_they_were(tmp_path):
    kept = CachedCounts(tmp_path / COUNTS)
    kept.counts.executions += 3
    kept.counts.refused += 2
    kept.keep()
    assert read_counts(tmp_path / COUNTS) == CachedCounts(tmp_path / COUNTS).counts == Counts(3, 2)


def test_report_names_defects(tmp_path):
    folder = tmp_path / "trn"
    (folder / DEFECTS).mkdir(parents=True)
    kept = CachedCounts(folder / COUNTS)
    kept.counts = Counts(1_000_000, 600_000, 399_999, 1)
    kept.keep()
    (folder / DEFECTS / "KeyError_trn.py_12.bin").write_bytes(b"x")
    text = fuzz_readers.report([fuzz_readers.read_result("trn", folder)])
    assert "|trn|1,000,000|600,000|399,999|1|" in text and "- trn: KeyError_trn.py_12" in text


def test_command(tmp_path, capsys):
    pytest.importorskip("atheris")
    command = ["--readers", "trn", "--folder", tmp_path / "kept", "--report", tmp_path / "fuzz.md"]
    for executions in (300, 200, 500):  # no fewer, and on from where it was
        fuzz_readers.main([*map(str, command), "--executions", str(executions)])
        counts = read_counts(tmp_path / "kept" / "trn" / COUNTS)
        assert counts.refused + counts.read == counts.executions >= executions
    assert f"|trn|{counts.executions}|" in (tmp_path / "fuzz.md").read_text()
    assert "no defects" in capsys.readouterr().out
