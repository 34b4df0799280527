"""Unlabelled audio divided into sets: whole sessions, without the test set, and nothing lost."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from voxpopuli_sessions import (
    HELD_OUT_ID,
    HELD_OUT_TIME,
    DivisionOptions,
    choose_sessions,
    divide,
    find_held_out,
    read_places,
    read_usable_places,
    write_subset,
)

from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.data_dir import Segment
from espnet_medusa.kaldi.table import read_table, sort_ids, write_table


def test_test_set_goes_by_id_and_by_session_and_time():
    places = {
        "before": Segment("s", 0, 10),
        "touches": Segment("s", 10, 20),
        "overlaps": Segment("s", 15, 20.001),
        "inside": Segment("s", 22, 23),
        "around": Segment("s", 10, 40),
        "behind": Segment("s", 30, 40),
        "elsewhere": Segment("t", 22, 23),
        "same_id": Segment("t", 50, 60),
        "whole": Segment("u", 5000, 5010),
    }
    held_out = {
        "test1": Segment("s", 20, 30),
        "same_id": Segment("elsewhere", 0, 1),
        "test2": Segment("u", 0, -1),
    }
    assert find_held_out(places, held_out) == {
        "overlaps": f"{HELD_OUT_TIME}: test1",
        "inside": f"{HELD_OUT_TIME}: test1",
        "around": f"{HELD_OUT_TIME}: test1",
        "same_id": HELD_OUT_ID,
        "whole": f"{HELD_OUT_TIME}: test2",
    }


def test_what_only_resembles_the_test_set_stays():
    session = "20190201-0900-PLENARY-15"
    places = {
        # Names that begin alike, the same time in another session, the same day.
        f"{session}_cs_1": Segment("20190201-0900-PLENARY-1", 20, 30),
        f"{session}-a_cs_1": Segment(f"{session}-a", 20, 30),
        "20190201-1500-PLENARY-15_cs_1": Segment("20190201-1500-PLENARY-15", 20, 30),
        # The next words of the same speaker.
        f"{session}_cs_2": Segment(session, 32.001, 40),
        # These are of it: other names and other cuts of the same time.
        f"{session}_cs_3": Segment(session, 31.999, 40),
        f"{session}_cs_0000000-0002000": Segment(session, 0, 18.001),
        f"{session}_cs_4": Segment(session, 24, 24.5),
    }
    held_out = {f"112233-{session}-cs_20190201-16:10:06_5": Segment(session, 20, 30)}
    result = divide(places, held_out, DivisionOptions(valid_fraction=0, margin_s=2.0))
    assert result.dropped == dict.fromkeys(
        list(places)[4:], f"{HELD_OUT_TIME}: {list(held_out)[0]}"
    )
    assert result.train == sort_ids(list(places)[:4])
    # Without a margin what touches is enough.
    result = divide(places, held_out, DivisionOptions(valid_fraction=0, margin_s=0.0))
    assert list(result.dropped) == [f"{session}_cs_4"]


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


def test_validation_sessions_are_enough_and_always_the_same():
    sessions = [f"session{i % 40}" for i in range(400)]
    chosen = choose_sessions(sessions, 0.05)
    assert sum(name in chosen for name in sessions) == 20
    assert choose_sessions(reversed(sessions), 0.05) == chosen
    assert chosen < choose_sessions(sessions, 0.2)
    assert chosen != {"session0", "session1"}
    assert choose_sessions(sessions, 0) == set()
    with pytest.raises(InputError, match="1 sessions cannot be divided.*--valid_fraction"):
        choose_sessions(["only"] * 5, 0.05)


def test_none_left_and_bad_options_are_one_line():
    with pytest.raises(InputError, match="none of 1 utterances is left"):
        divide({"u": Segment("s", 0, 5)}, {"t": Segment("s", 0, -1)})
    with pytest.raises(InputError, match="valid_fraction 1.5: must be"):
        DivisionOptions(valid_fraction=1.5)
    with pytest.raises(InputError, match="margin_s nan: must be"):
        DivisionOptions(margin_s=float("nan"))


def write_unlabelled(folder: Path, places: dict[str, Segment]) -> Path:
    lines = {key: f"{place.recording} {place.start_s} {place.end_s}"
             for key, place in places.items()}  # fmt: skip
    write_table(folder / "segments", lines)
    write_table(folder / "utt2session", lines | {"unusable": "s0 0 -1"})
    write_table(folder / "utt2spk", {key: place.recording for key, place in places.items()})
    recordings = {place.recording for place in places.values()}
    write_table(folder / "wav.scp", {name: f"audio/{name}_cs.ogg" for name in recordings})
    return folder


def test_a_subset_is_a_data_directory_and_leaves_nothing_of_an_earlier_one(tmp_path):
    places = {f"u{i}": Segment(f"s{i % 3}", i, i + 1) for i in range(9)}
    source, target = write_unlabelled(tmp_path / "all", places), tmp_path / "some"
    write_subset(source, target, places, {"u": "reason"})
    write_subset(source, target, ["u0", "u3", "u1"], {})
    assert {path.name for path in target.iterdir()} == {
        "segments", "utt2session", "utt2spk", "spk2utt", "wav.scp",
    }  # fmt: skip
    assert [*read_table(target / "segments")] == ["u0", "u1", "u3"]
    assert read_table(target / "wav.scp") == {name: f"audio/{name}_cs.ogg" for name in ("s0", "s1")}
    assert read_table(target / "spk2utt") == {"s0": "u0 u3", "s1": "u1"}


def test_places_come_from_utt2session_or_segments(tmp_path):
    places = {f"u{i}": Segment("s", i, i + 1) for i in range(3)}
    folder = write_unlabelled(tmp_path / "data", places)
    assert read_places(folder).keys() - read_usable_places(folder).keys() == {"unusable"}
    (folder / "utt2session").unlink()
    assert read_usable_places(folder) == places
    write_table(folder / "utt2spk", {"u9": "s"})
    with pytest.raises(InputError, match="u9: has no line in utt2session"):
        read_usable_places(folder)
    write_table(folder / "segments", {"u0": "s 5 1"})
    with pytest.raises(InputError, match="segments: u0: ends at 1 s"):
        read_places(folder)
    (folder / "segments").unlink()
    with pytest.raises(InputError, match="neither utt2session nor segments"):
        read_places(folder)
