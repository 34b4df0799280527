"""VoxPopuli's unlabelled audio: segments, and whole sessions as sets without the test set."""

import hashlib
import os
from pathlib import Path

import numpy as np
import prepare_voxpopuli
import pytest
import voxpopuli_miniature as miniature
import voxpopuli_sessions as division
from downloads import make_tar, serve
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_refused
from voxpopuli_miniature import TEST_SESSION, build_voxpopuli, damage_audio, problems, run, tables
from voxpopuli_sessions import HELD_OUT_TIME, DivisionOptions, divide, find_held_out

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi import data_dir
from espnet_medusa.data.kaldi.data_dir import Segment, parse_segment
from espnet_medusa.data.kaldi.table import DataProblem, read_table, sort_ids, write_table


def run_unlabelled(*options: str) -> int:
    chosen = ["--setup", "self_supervised", "--segmentation", "auto", "--valid_fraction", "0"]
    return run(*chosen, *options)


def by_session(segments: dict[str, str]) -> dict[str, list[tuple[float, float]]]:
    times: dict[str, list[tuple[float, float]]] = {}
    for value in segments.values():
        segment = parse_segment(value)
        times.setdefault(segment.recording, []).append((segment.start_s, segment.end_s))
    return times


def is_within(utterance: miniature.MiniatureUtterance, times: list[tuple[float, float]]) -> bool:
    return any(start <= utterance.start_s and utterance.end_s <= end for start, end in times)


def validate_unlabelled() -> list[DataProblem]:
    options = data_dir.ValidationOptions(require_text=False)
    return data_dir.validate_data_dir("data/unlabelled_de", options=options)


def test_unlabelled_sessions_have_official_segments_or_are_cut_at_silences(in_folder, capsys):
    build_voxpopuli(Path("vox"), unlabelled_sessions=3)
    assert run_unlabelled() == 0
    assert problems(capsys) == validate_unlabelled() == []
    assert sorted(os.listdir("data")) == ["test_de", "train_de_unlabelled", "unlabelled_de"]
    unlabelled = tables("unlabelled_de")
    assert "text" not in unlabelled and unlabelled["utt2session"] == unlabelled["segments"]
    assert unlabelled["wav.scp"][TEST_SESSION].endswith(f"raw_audios/de/2019/{TEST_SESSION}_de.ogg")
    sessions = by_session(unlabelled["segments"])
    assert len(sessions) == 4
    official = "20190301-0900-PLENARY-0"
    assert sessions[official] == [(0.3, 1.5), (2.2, 3.65), (4.35, 6.05), (6.75, 8.7)]
    assert f"{official}_de_0" in unlabelled["segments"]
    # The others are cut in pauses: each utterance is within a segment.
    for session in ("20190302-0900-PLENARY-1", TEST_SESSION):
        for utterance in miniature.plan_session(session, "", 4, 150, "de"):
            assert is_within(utterance, sessions[session])


def test_segments_at_silences_only(in_folder):
    build_voxpopuli(Path("vox"), unlabelled_sessions=1)
    assert run_unlabelled("--segmentation", "silence", "--max_segment_s", "3") == 0
    for session, times in by_session(tables("unlabelled_de")["segments"]).items():
        utterances = miniature.plan_session(session, "", 4, 150, "de")
        # Two utterances of 1 s or more, a pause of 0.9 s and margins exceed 3 s.
        assert len(times) == 4
        for (start_s, end_s), utterance in zip(sorted(times), utterances, strict=True):
            assert start_s == pytest.approx(utterance.start_s - 0.15, abs=0.06)
            assert end_s == pytest.approx(utterance.end_s + 0.15, abs=0.06)
    # The years choose the sessions.
    session = "20100301-0900-PLENARY-1"
    planned = miniature.plan_session(session, "", 2, 300, "de")
    miniature.write_session(Path("vox"), "de", session, planned)
    assert run_unlabelled("--years", "2010") == 0
    assert list(tables("unlabelled_de")["wav.scp"]) == [session]


def test_official_segments_only_and_long_ones_are_cut(in_folder):
    build_voxpopuli(Path("vox"), unlabelled_sessions=2)
    session = "20190301-0900-PLENARY-0"
    event = f"{session}_de"
    miniature.write_segment_table(Path("vox"), [(event, "0", "0.0", "8.5"), (event, "1", "8", "9")])
    assert run_unlabelled("--segmentation", "official", "--max_segment_s", "4") == 0
    segments = tables("unlabelled_de")["segments"]
    assert list(by_session(segments)) == [session]
    times = sorted(by_session(segments)[session])
    assert times[-1] == (8, 9) and f"{event}_1" in segments
    assert all(end - start <= 4 for start, end in times)
    for utterance in miniature.plan_session(session, "", 4, 150, "de")[:3]:
        assert is_within(utterance, times)
    Path("vox/unlabelled_data/unlabelled_v2.tsv.gz").unlink()
    assert run_unlabelled("--segmentation", "official") == 1


def test_bad_unlabelled_segments_and_sessions_are_named(in_folder, capsys):
    build_voxpopuli(Path("vox"), unlabelled_sessions=4)
    good, bad = "20190301-0900-PLENARY-0", "20190302-0900-PLENARY-1"
    rows = [
        (f"{good}_de", "0", "1", "2"), (f"{good}_de", "1", "2", "1"), (f"{good}_de", "2", "x", "1"),
        (f"{good}_de", "3", "1", "77"), (f"{good}_fr", "4", "1", "2"),
        ("20190305-0900-PLENARY-9_de", "0", "1", "2"), ("20190305-0900-ENVI_de", "0", "1", "2"),
        ("20120305-0900-PLENARY-9_de", "0", "1", "2"),
    ]  # fmt: skip
    miniature.write_segment_table(Path("vox"), rows)
    sessions = Path("vox/raw_audios/de/2019")
    damage_audio(sessions / f"{bad}_de.ogg", "truncated")
    silent = sessions / "20190301-0900-PLENARY-7_de.ogg"
    miniature.write_ogg(silent, np.zeros(5 * miniature.RATE_HZ))
    assert run_unlabelled() == 3
    lines = problems(capsys)
    for message in (
        "line 3: has impossible times: 2 1",
        "line 4: has times that are no numbers: x 1",
        f"{good}_de_3: ends at 77.0 s but the session at",
        "20190305-0900-PLENARY-9: its audio is missing (1 segments)",
        f"{bad}: is truncated",
        f"{silent}: 20190301-0900-PLENARY-7: holds no sound;",
    ):
        assert sum(message in line for line in lines) == 1
    assert len(lines) == 6
    sessions = by_session(tables("unlabelled_de")["segments"])
    assert sessions[good] == [(1, 2)] and len(sessions) == 4 and bad not in sessions
    assert validate_unlabelled() == []


def test_missing_corpus_is_downloaded_once(in_folder):
    source, table = build_voxpopuli(Path("source"), unlabelled_sessions=2), "unlabelled_v2.tsv.gz"
    files = {
        "/annotations/asr/asr_de.tsv.gz": source / "transcribed_data/de/asr_de.tsv.gz",
        f"/annotations/{table}": source / "unlabelled_data" / table,
    }
    for channel in ("original", "de"):
        sessions = (source / "raw_audios" / channel / "2019").iterdir()
        members = {f"{channel}/2019/{path.name}": path.read_bytes() for path in sessions}
        name = f"{channel}_2019.tar"
        files[f"/audios/{name}"] = make_tar(Path(name), members, "w")
    with serve() as server:
        server.files = {address: path.read_bytes() for address, path in files.items()}
        options = ["--lang", "de", "--setup", "self_supervised", "--base_url", server.url]
        options += ["--years", "2019", "--segmentation", "auto"]
        prepare_voxpopuli.main(options)
        assert {path for path, _ in server.requests} == set(files)
        first = tables("unlabelled_de")
        assert len(first["wav.scp"]) == 3 and len(tables("test_de")["text"]) == 4
        assert not list(Path("downloads").rglob("*.tar"))
        server.requests.clear()
        prepare_voxpopuli.main(options)
        assert server.requests == [] and tables("unlabelled_de") == first


def test_test_set_is_held_out_by_id_and_by_time():
    places = {
        "before": Segment("s", 0, 10), "touches": Segment("s", 10, 20),
        "overlaps": Segment("s", 15, 20.001), "inside": Segment("s", 22, 23),
        "around": Segment("s", 10, 40), "after": Segment("s", 30, 40),
        "elsewhere": Segment("t", 22, 23), "same_id": Segment("t", 50, 60),
        "similar_session": Segment("s-a", 22, 23), "whole": Segment("u", 5000, 5010),
    }  # fmt: skip
    held_out = {"test1": Segment("s", 20, 30), "test2": Segment("u", 0, -1)}
    held_out["same_id"] = Segment("elsewhere", 0, 1)
    by_time = dict.fromkeys(("overlaps", "inside", "around"), f"{HELD_OUT_TIME}: test1")
    others = {"same_id": division.HELD_OUT_ID, "whole": f"{HELD_OUT_TIME}: test2"}
    assert find_held_out(places, held_out) == by_time | others


def test_the_margin_is_before_and_after_a_test_utterance():
    places = {
        "before": Segment("s", 10, 18),
        "touches_before": Segment("s", 10, 18.001),
        "inside": Segment("s", 24, 24.5),
        "touches_after": Segment("s", 31.999, 40),
        "after": Segment("s", 32.001, 40),
    }
    for margin_s, dropped in {2.0: list(places)[1:4], 0.0: ["inside"]}.items():
        options = DivisionOptions(valid_fraction=0, margin_s=margin_s)
        result = divide(places, {"test": Segment("s", 20, 30)}, options)
        assert result.dropped == dict.fromkeys(dropped, f"{HELD_OUT_TIME}: test")
        assert result.train == sort_ids(places.keys() - {*dropped})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nothing_is_lost_and_sessions_stay_whole(data):
    sessions = st.sampled_from(["s1", "s2", "s3", "s4"])
    places = {}
    for i in range(data.draw(st.integers(4, 60))):
        start_s = data.draw(st.integers(0, 90))
        places[f"u{i}"] = Segment(data.draw(sessions), start_s, start_s + 5)
    held_out = {"t": Segment("s1", 30, 40)}
    fraction = 0.2
    try:
        result = divide(places, held_out, DivisionOptions(valid_fraction=fraction))
    except InputError:
        left = places.keys() - find_held_out(places, held_out, 2.0).keys()
        assert len({places[key].recording for key in left}) < 2
        return
    parts = [set(result.train), set(result.valid), set(result.dropped)]
    assert set.union(*parts) == set(places)
    assert sum(map(len, parts)) == len(places)
    assert len(result.valid) >= fraction * (len(places) - len(result.dropped))
    train_sessions = {places[key].recording for key in result.train}
    assert train_sessions.isdisjoint(places[key].recording for key in result.valid)


def test_validation_sessions_are_enough_and_the_same_and_bad_options_are_refused():
    sessions = [f"session{i % 40}" for i in range(400)]
    chosen = division.choose_sessions(sessions, 0.05)
    assert sum(name in chosen for name in sessions) == 20
    assert division.choose_sessions(reversed(sessions), 0.05) == chosen
    assert chosen < division.choose_sessions(sessions, 0.2)
    assert chosen != {"session0", "session1"}
    assert division.choose_sessions(sessions, 0) == set()
    # A small session trains if the others are needed to validate.
    ordered = sorted(["s1", "s2"], key=lambda name: hashlib.sha256(name.encode()).digest())
    sessions = [ordered[0]] + 5 * [ordered[1]]
    assert division.choose_sessions(sessions, 0.2) == {ordered[1]}
    assert division.choose_sessions(sessions, 0.1) == {ordered[0]}
    message = "1 sessions cannot be divided.*--valid_fraction"
    assert_refused(message, division.choose_sessions, ["only"] * 5, 0.05)
    places = {"u": Segment("s", 0, 5)}, {"t": Segment("s", 0, -1)}
    assert_refused("none of 1 utterances is left", divide, *places)
    assert_refused("valid_fraction 1.5: must be", DivisionOptions, valid_fraction=1.5)
    assert_refused("margin_s nan: must be", DivisionOptions, margin_s=float("nan"))


def write_unlabelled(folder: Path, places: dict[str, Segment]) -> Path:
    lines = {key: f"{p.recording} {p.start_s} {p.end_s}" for key, p in places.items()}
    write_table(folder / "segments", lines)
    write_table(folder / "utt2session", lines | {"unusable": "s0 0 -1"})
    write_table(folder / "utt2spk", {key: place.recording for key, place in places.items()})
    recordings = {place.recording for place in places.values()}
    write_table(folder / "wav.scp", {name: f"audio/{name}_cs.ogg" for name in recordings})
    return folder


def test_a_subset_is_a_data_directory_without_old_tables(tmp_path):
    places = {f"u{i}": Segment(f"s{i % 3}", i, i + 1) for i in range(9)}
    source, target = write_unlabelled(tmp_path / "all", places), tmp_path / "some"
    division.write_subset(source, target, places, {"u": "reason"})
    division.write_subset(source, target, ["u0", "u3", "u1"], {})
    names = {"segments", "utt2session", "utt2spk", "spk2utt", "wav.scp"}
    assert {path.name for path in target.iterdir()} == names
    assert [*read_table(target / "segments")] == ["u0", "u1", "u3"]
    assert read_table(target / "wav.scp") == {name: f"audio/{name}_cs.ogg" for name in ("s0", "s1")}
    assert read_table(target / "spk2utt") == {"s0": "u0 u3", "s1": "u1"}


def test_places_come_from_utt2session_or_segments(tmp_path):
    places = {f"u{i}": Segment("s", i, i + 1) for i in range(3)}
    folder = write_unlabelled(tmp_path / "data", places)
    unusable = division.read_places(folder).keys() - division.read_usable_places(folder).keys()
    assert unusable == {"unusable"}
    (folder / "utt2session").unlink()
    assert division.read_usable_places(folder) == places
    write_table(folder / "utt2spk", {"u9": "s"})
    assert_refused("u9: has no line in utt2session", division.read_usable_places, folder)
    write_table(folder / "segments", {"u0": "s 5 1"})
    assert_refused("segments: u0: ends at 1 s", division.read_places, folder)
    (folder / "segments").unlink()
    assert_refused("neither utt2session nor segments", division.read_places, folder)
